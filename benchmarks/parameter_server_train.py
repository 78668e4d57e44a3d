# SPDX-License-Identifier: Apache-2.0
"""Trains one model once for `parameter_server.py`, and writes down how good it was when.

Started by `gangline run`; with `--contender DDP` it is torch's DistributedDataParallel over gloo. All
contenders have the same model, data, loop, pacer and pauses. The first worker keeps copies of its
parameters on the way, which are judged afterwards, so that judging costs no contender any time.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import resource
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import gangline
from gangline import zoo
from gangline.emulation.pacing import pace
from gangline.protocol.launch import Launch
from real_models_train import as_is, join_ddp
from sync_worker import Digits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.emulation.pacing import Pacer

DDP = "DDP"
MODELS = ("lenet", "gpt", "wide")
CONTEXT, VOCABULARY, WIDTH = 32, 128, 2048
TEST_SAMPLES = {"lenet": 2000, "gpt": 200}
STEPS_HELD = 3
"""After so many steps, in the first epoch, memory is looked at: its end takes more."""
KEPT_EVERY_S = 0.15
JUDGED_TOGETHER = 3
PAUSE_EVERY_S, PAUSE_S = 2.0, 0.5
"""Random pauses: the mean time between two, and their mean length."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """How one run went, as its first worker saw it."""

    seconds: float
    to_accuracy_s: float | None
    to_loss_s: float | None
    accuracy: float
    loss: float


class Characters(Dataset[Any]):
    """Windows of a text; the last tenth of it is for testing."""

    def __init__(self, file: Path, *, count: int, is_test: bool) -> None:
        text = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8).long()
        text = text.clamp(max=VOCABULARY - 1)
        cut = len(text) * 9 // 10
        self._text = text[cut:] if is_test else text[:cut]
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        places = torch.as_tensor(indices) * 7919 % (len(self._text) - CONTEXT - 1)
        windows = self._text[places[:, None] + torch.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]


class Noise(Dataset[Any]):
    """Made-up vectors, for a model whose memory is all that matters."""

    def __len__(self) -> int:
        return 512

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        return torch.ones(len(indices), WIDTH), torch.zeros(len(indices), dtype=torch.long)


def model_of(name: str) -> nn.Module:
    """LeNet-5, a GPT of 0.1 million parameters, or a perceptron of 17 million."""
    if name == "lenet":
        return zoo.build_model("lenet5", image_size=28)
    if name == "gpt":
        return zoo.CharTransformer(VOCABULARY, context=CONTEXT, width=64, num_heads=4, depth=2)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def data_of(name: str, folder: Path, *, count: int, is_test: bool = False) -> Dataset[Any]:
    """What it is trained with, or tested."""
    if name == "lenet":
        return Digits(str(folder / "mnist"), "t10k" if is_test else "train", count)
    if name == "gpt":
        return Characters(folder / "text" / "tinyshakespeare.txt", count=count, is_test=is_test)
    return Noise()


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


class Pauses:
    """Now and then this worker stands still: by the clock, so that all contenders have as many."""

    def __init__(self, seed: int, *, is_on: bool) -> None:
        self._random = random.Random(seed)
        self._next_s = time.perf_counter() + self._gap_s() if is_on else float("inf")

    def _gap_s(self) -> float:
        return self._random.expovariate(1 / PAUSE_EVERY_S)

    def pass_by(self) -> None:
        if time.perf_counter() >= self._next_s:
            time.sleep(self._random.expovariate(1 / PAUSE_S))
            self._next_s = time.perf_counter() + self._gap_s()


Kept = list[tuple[float, dict[str, Tensor]]]


def train(
    model: nn.Module, optimizer: Any, loader: Any, pacer: Pacer, pauses: Pauses, epochs: Any
) -> Iterator[float]:
    """The loop; yields the time after every step."""
    began = time.perf_counter()
    for epoch in epochs:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            pacer.begin(len(inputs))
            pauses.pass_by()
            optimizer.zero_grad()
            loss_of(model(inputs), targets).backward()
            optimizer.step()
            yield time.perf_counter() - began


def join(
    options: argparse.Namespace, model: nn.Module, data: Dataset[Any]
) -> tuple[nn.Module, Any, Any, Any]:
    """The model, optimizer, loader and epochs of this contender."""
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    if options.contender != DDP:
        gangline.init()
        loader = DataLoader(data, batch_size=options.batch, shuffle=True, collate_fn=as_is)
        found = gangline.prepare(model, optimizer, loader)
        return found[0], found[1], found[2], gangline.epochs(options.epochs)
    workers = len(options.speeds)
    join_ddp(options.folder, options.worker, workers)
    own = options.batch // workers
    loader = DataLoader(data, batch_size=own, sampler=DistributedSampler(data), collate_fn=as_is)
    return nn.parallel.DistributedDataParallel(model), optimizer, loader, range(options.epochs)


def judge(options: argparse.Namespace, model: nn.Module, kept: Kept) -> Judged:
    """When the targets were reached, by the median of copies on end; and how good it was at the end."""
    test: Any = data_of(
        options.model, options.data, count=TEST_SAMPLES[options.model], is_test=True
    )
    inputs, targets = test.__getitems__(range(len(test)))
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # the others only wait by now

    def look(state: dict[str, Tensor]) -> tuple[float, float]:
        model.load_state_dict(state)
        with torch.no_grad():
            logits = model(inputs)
            accuracy = (logits.argmax(-1) == targets).float().mean()
            return float(accuracy), float(loss_of(logits, targets))

    seen: list[tuple[float, float, float]] = []
    reached: dict[str, float] = {}
    aims = {"loss", "accuracy"} if options.accuracy <= 1 else {"loss"}
    for at_s, state in kept:
        if aims <= reached.keys():
            break
        seen.append((at_s, *look(state)))
        last = seen[-JUDGED_TOGETHER:]
        if len(last) == JUDGED_TOGETHER:
            middle_s = last[JUDGED_TOGETHER // 2][0]
            if median(one[1] for one in last) >= options.accuracy:
                reached.setdefault("accuracy", middle_s)
            if median(one[2] for one in last) <= options.loss:
                reached.setdefault("loss", middle_s)
    accuracy, loss = look(kept[-1][1])
    return Judged(
        seconds=kept[-1][0],
        to_accuracy_s=reached.get("accuracy"),
        to_loss_s=reached.get("loss"),
        accuracy=accuracy,
        loss=loss,
    )


def peak_mb() -> float:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--contender", required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--accuracy", type=float, default=2.0)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--speeds", required=True)
    parser.add_argument("--pauses", action="store_true")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    options.speeds = [float(speed) for speed in options.speeds.split(",")]
    launch = Launch.from_environment(os.environ)
    assert launch is not None, "started by gangline run"
    options.worker = launch.worker
    return options


def main() -> None:
    """Trains, and says how it went; every worker says how much memory it took."""
    torch.set_num_threads(1)
    options = arguments()
    torch.manual_seed(options.seed)
    data = data_of(options.model, options.data, count=options.samples)
    model = plain = model_of(options.model)
    before_mb = peak_mb()
    pacer = pace(model, options.speeds[options.worker])
    model, optimizer, loader, epochs = join(options, model, data)
    pauses = Pauses(1000 * options.seed + options.worker, is_on=options.pauses)
    is_judge = options.worker == 0 and options.model != "wide"
    kept: Kept = []
    now_s = steps_mb = 0.0
    for number, now_s in enumerate(train(model, optimizer, loader, pacer, pauses, epochs)):
        if number == STEPS_HELD:
            steps_mb = peak_mb() - before_mb
        if is_judge and (not kept or now_s - kept[-1][0] > KEPT_EVERY_S):
            kept.append((now_s, copy.deepcopy(plain.state_dict())))
    held = {"peak_mb": peak_mb() - before_mb, "steps_mb": steps_mb, "seconds": now_s}
    (options.folder / f"held-{options.worker}.json").write_bytes(msgspec.json.encode(held))
    if is_judge:
        kept.append((now_s, copy.deepcopy(plain.state_dict())))
        pacer.remove()
        judged = judge(options, plain, kept)
        (options.folder / "judged.json").write_bytes(msgspec.json.encode(judged))


if __name__ == "__main__":
    main()
