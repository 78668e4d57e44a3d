# SPDX-License-Identifier: Apache-2.0
"""What the workers of `pipelines.py` run: one model in stages, by gangline and by torch."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset

WARMUP = 2


def made(blocks: int, width: int) -> nn.Sequential:
    """Blocks of two wide layers each, all alike."""
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for _ in range(blocks):
        block = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        layers.append(Residual(block))
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """Adds what it is given to what its body makes of it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        return x + self.body(x)


def take_part(percentages: list[int]) -> int:
    """This worker's number. Its part of the GPU must be said before the GPU is used."""
    worker: int = json.loads(os.environ["GANGLINE_LAUNCH"])["worker"]
    if percentages:
        os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percentages[worker])
    torch.set_num_threads(1)
    return worker


def train_gangline(job: dict[str, Any], memory: list[float] | None) -> dict[str, Any]:
    """Seconds per step, over those after the first ones."""
    worker = take_part(job["percentages"])
    import gangline

    gangline.init()
    model = made(job["blocks"], job["width"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(job["batch"] * (WARMUP + job["steps"]), job["width"])
    loader = DataLoader(TensorDataset(x, x), batch_size=job["batch"])
    pipe = gangline.pipeline(
        model,
        optimizer,
        loader,
        loss=nn.functional.mse_loss,
        stages=job["workers"],
        micro_batches=job["micro_batches"],
        schedule=job["schedule"],
        copies=job["copies"],
        memory=None if memory is None else memory[worker],
    )
    times = []
    for loss in pipe:
        times.append(time.perf_counter())
        assert loss == loss
    stages = [(one.start, one.stop) for one in pipe.layout.pipelines[0].stages]
    result = {
        "step_s": (times[-1] - times[WARMUP - 1]) / job["steps"],
        "stages": stages,
        "machines": pipe.layout.pipelines[0].machines,
        "held_mb": sum(p.nbytes for p in model.parameters() if not p.is_meta) / 1e6,
        "peak_mb": peak_mb(),
    }
    pipe.close()
    return result


class PacedStage(PipelineStage):
    """A stage of torch's on a machine that is emulated slower: what gangline's stages do."""

    speed = 1.0

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Takes as long as that machine would."""
        return self._paced(super().forward_one_chunk, args, kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Takes as long as that machine would."""
        return self._paced(super().backward_one_chunk, args, kwargs)

    def _paced(self, do: Any, args: Any, kwargs: Any) -> Any:
        begun = time.thread_time()
        out = do(*args, **kwargs)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self.speed < 1:
            time.sleep((time.thread_time() - begun) * (1 / self.speed - 1))
        return out


def train_torch(job: dict[str, Any], store: str) -> dict[str, Any]:
    """The same with as many layers on each stage, by torch.distributed.pipelining over gloo."""
    worker = take_part(job["percentages"])
    device = torch.device("cuda" if job["percentages"] else "cpu")
    count = job["workers"]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=worker, world_size=count)
    try:
        model = made(job["blocks"], job["width"])
        each = job["blocks"] // count
        part = model[worker * each : (worker + 1) * each].to(device)
        optimizer = torch.optim.SGD(part.parameters(), lr=1e-3)
        stage = PacedStage(part, worker, count, device)
        stage.speed = job["speeds"][worker]
        kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[job["schedule"]]
        schedule = kind(stage, job["micro_batches"], loss_fn=nn.functional.mse_loss)
        x = torch.randn(job["batch"], job["width"], device=device)
        times = []
        for _ in range(WARMUP + job["steps"]):
            optimizer.zero_grad()
            if worker == 0:
                schedule.step(x)
            elif worker == count - 1:
                schedule.step(target=x)
            else:
                schedule.step()
            optimizer.step()
            dist.barrier()
            times.append(time.perf_counter())
        return {
            "step_s": (times[-1] - times[WARMUP - 1]) / job["steps"],
            "held_mb": sum(p.nbytes for p in part.parameters()) / 1e6,
            "peak_mb": peak_mb(),
        }
    finally:
        dist.destroy_process_group()


def peak_mb() -> float:
    """The most that the GPU has held for this process so far; 0 without one."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0.0
    return torch.cuda.max_memory_allocated() / 1e6
