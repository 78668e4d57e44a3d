# SPDX-License-Identifier: Apache-2.0
"""Gradients on a GPU: what an all-reduce costs by way of the host, and how much of it is hidden.

    python benchmarks/gpu_exchange.py
    python benchmarks/gpu_exchange.py --device cpu --bytes 65536 --width 256   # without a GPU

Two processes share one GPU. First the time of an all-reduce of the GPU's tensors: wire by shared
memory and by TCP, against gloo; beside them what it takes to copy the tensor to pinned host memory
and back. Then training: which units were exchanged before the device had finished the backward pass.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline
from allreduce import ASK_S, BASELINE, RANK, WIRE, Worker, measured, summary, timed
from even_ddp import as_gangline_run
from gangline.engines.coordination import coordinator_process
from gangline.worker.gradients.communicator import Communicator
from gangline.worker.gradients.exchange import Gradients
from harness import RESULTS, Comparison, compare, save
from teams import Team, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SIZES = [4 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20]
NUM_WORKERS = 2
NUM_LAYERS = 8
WARM_UP_STEPS = 5


# A worker's side


class Watch:
    """When the exchanges of one backward pass were asked for and ended, and when the pass did."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, float]] = []
        self.queued_s = self.computed_s = 0.0
        self._patch()

    def _patch(self) -> None:
        submit, finish_local = Communicator.submit, Gradients.finish_local

        def noted_submit(own: Communicator, exchange: Callable[[Any], Any]) -> Any:
            note = {"asked_s": time.perf_counter()}
            self.exchanges.append(note)

            def noted(group: Any) -> Any:
                try:
                    return exchange(group)
                finally:
                    note["ended_s"] = time.perf_counter()

            return submit(own, noted)

        def noted_finish(own: Gradients, **options: Any) -> bool:
            self.queued_s = time.perf_counter()
            result = finish_local(own, **options)
            self.computed_s = time.perf_counter()
            return result

        Communicator.submit = noted_submit  # type: ignore[method-assign]
        Gradients.finish_local = noted_finish  # type: ignore[method-assign]

    def clear(self) -> None:
        self.exchanges.clear()

    def report(self) -> dict[str, float]:
        """What happened in the pass that is over."""
        last_s = max(note["ended_s"] for note in self.exchanges)
        return {
            "units": len(self.exchanges),
            "asked before the pass was queued": sum(
                note["asked_s"] < self.queued_s for note in self.exchanges
            ),
            "exchanged before the device was done": sum(
                note["ended_s"] < self.computed_s for note in self.exchanges
            ),
            "waited after the pass (ms)": max(0.0, last_s - self.computed_s) * 1e3,
        }


class GpuWorker(Worker):
    """One of the processes that share the GPU."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)
        self._training: Iterator[dict[str, float]] | None = None

    def answer(self, request: dict[str, Any]) -> object:
        if request["do"] == "train":
            return self._train(request)
        if request["do"] == "time":
            return self._time(request)
        return super().answer(request)

    def _time(self, request: dict[str, Any]) -> float:
        tensor = torch.zeros(request["bytes"] // 4, device=self._device)

        def once() -> None:
            self._all_reduce(tensor)
            finish(self._device)

        return timed(once, calls=request["calls"])

    def _train(self, request: dict[str, Any]) -> dict[str, float]:
        if self._training is None:
            self._training = self._steps(width=request["width"], batch=request["batch"])
            for _ in range(WARM_UP_STEPS):
                next(self._training)
        reports = [next(self._training) for _ in range(request["steps"])]
        return {key: statistics.median(report[key] for report in reports) for key in reports[0]}

    def _steps(self, *, width: int, batch: int) -> Iterator[dict[str, float]]:
        """Trains for ever; each `next` is one step."""
        watch = Watch()
        layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(NUM_LAYERS)]
        model = nn.Sequential(*layers).to(self._device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        x = torch.randn(batch, width, device=self._device)
        numbers = TensorDataset(torch.arange(64 * NUM_WORKERS))
        gangline.init()
        model, optimizer, loader = gangline.prepare(
            model, optimizer, DataLoader(numbers, batch_size=NUM_WORKERS), allocation="equal"
        )
        while True:
            started = time.perf_counter()
            for _ in loader:
                watch.clear()
                optimizer.zero_grad()
                F.mse_loss(model(x), x).backward()
                report = watch.report()
                optimizer.step()
                finish(self._device)
                now = time.perf_counter()
                yield {**report, "step (ms)": (now - started) * 1e3}
                started = time.perf_counter()


def finish(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# The benchmark's side


def command(options: argparse.Namespace) -> list[str]:
    return [sys.executable, __file__, "--as-worker", "--device", options.device]


def exchange_team(transport: str, options: argparse.Namespace, *, folder: Path) -> Team:
    """A team whose workers have made their group."""
    environments = [{RANK: str(rank)} for rank in range(NUM_WORKERS)]
    team = Team(command(options), environments=environments)
    request: dict[str, Any] = {"do": "join", "transport": transport, "size": NUM_WORKERS}
    if transport == "gloo":
        request["store"] = str(folder / "gloo")
    else:
        request["addresses"] = team.ask({"do": "listen"}, timeout_s=ASK_S)
        request["token"] = os.urandom(32).hex()
    team.ask(request, timeout_s=ASK_S)
    return team


def compare_exchanges(options: argparse.Namespace) -> dict[str, Comparison]:
    """The time of an all-reduce, by size."""
    found: dict[str, Comparison] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        teams: dict[str, Team] = {}
        for name, transport in WIRE.items():
            team = exchange_team(transport, options, folder=folder)
            teams[name] = stack.enter_context(team)
        for num_bytes in options.bytes:
            contenders = {name: measured(team, num_bytes) for name, team in teams.items()}
            title = f"{NUM_WORKERS} workers on one {options.device} device, {num_bytes >> 10} KB"
            comparison = compare(contenders, baseline=BASELINE, repeats=options.repeats)
            limit_s = staging_s(num_bytes, torch.device(options.device))
            times = {row.name: row.median_s / limit_s for row in comparison.rows}
            found[title] = comparison.with_extra("× to the host and back", times)
            print(summary(title, comparison), f"(to the host and back {limit_s * 1e3:.3f} ms)")
    return found


def staging_s(num_bytes: int, device: torch.device) -> float:
    """What it takes to copy a tensor to pinned host memory and back."""
    tensor = torch.zeros(num_bytes // 4, device=device)
    host = torch.zeros(num_bytes // 4, pin_memory=device.type == "cuda")

    def once() -> None:
        host.copy_(tensor, non_blocking=True)
        tensor.copy_(host, non_blocking=True)
        finish(device)

    return timed(once, calls=9)


def watch_training(transport: str, options: argparse.Namespace) -> list[dict[str, float]]:
    """What each worker saw of its backward passes."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gangline-bench-")))
        job = as_gangline_run(folder, workers=NUM_WORKERS, transport=transport)
        stack.enter_context(coordinator_process(job, os.environ))
        environments: list[Mapping[str, str]] = [
            {RANK: str(rank), **launch.to_environment()}
            for rank, launch in enumerate(job.launches())
        ]
        team = stack.enter_context(Team(command(options), environments=environments))
        request = {"do": "train", "width": options.width, "batch": options.batch}
        answers: list[dict[str, float]] = team.ask(
            {**request, "steps": options.steps}, timeout_s=ASK_S
        )
        return answers


def overlap_table(found: Mapping[str, list[dict[str, float]]]) -> str:
    """One row per transport and worker."""
    headings = list(next(iter(found.values()))[0])
    lines = [
        "| transport | worker | " + " | ".join(headings) + " |",
        "|---" * (len(headings) + 2) + "|",
    ]
    for transport, workers in found.items():
        for rank, report in enumerate(workers):
            cells = [f"{report[heading]:.4g}" for heading in headings]
            lines.append(f"| {transport} | {rank} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048, help="of the layers in training")
    parser.add_argument("--batch", type=int, default=8192, help="rows per worker in training")
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args()


def main() -> None:
    """Measures both, and writes and prints the results."""
    options = parse_options()
    if options.as_worker:
        serve(GpuWorker(options.device).answer)
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this machine has no CUDA device; `--device cpu` shows the same without one")
    overlap = {transport: watch_training(transport, options) for transport in ("wire", "gloo")}
    table = overlap_table(overlap)
    print(table, flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "gpu_overlap.md").write_text(table + "\n", encoding="utf-8")
    (RESULTS / "gpu_overlap.json").write_text(json.dumps(overlap), encoding="utf-8")
    print(save("gpu_exchange", compare_exchanges(options)))


if __name__ == "__main__":
    main()
