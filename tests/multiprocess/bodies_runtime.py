# SPDX-License-Identifier: Apache-2.0
"""What the workers of the runtime tests do. Everything here runs inside worker processes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

import gangline
from gangline.protocol.launch import Launch
from gangline.spec.errors import GanglineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT_S = 30.0
FEATURES = 4


def own_rank() -> int:
    """This worker's rank, before `init`."""
    launch = Launch.from_environment(os.environ)
    assert launch is not None
    return launch.worker


def message_of(call: Callable[[], Any]) -> str:
    """The error that a call ends with."""
    try:
        call()
    except (GanglineError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def vectors(count: int, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator)
    return TensorDataset(x, torch.randn(count, 1, generator=generator))


# --- which samples count: one-hot inputs make the gradient a census ---------------------------------


class EvensBackwards(Sampler[int]):
    """An order of somebody's own."""

    def __init__(self, count: int) -> None:
        self.chosen = list(range(0, count, 2))[::-1]

    def __iter__(self) -> Iterator[int]:
        return iter(self.chosen)

    def __len__(self) -> int:
        return len(self.chosen)


@dataclass(frozen=True)
class Census:
    """A job whose gradients say how often each sample counted."""

    samples: int = 23
    batch: int = 8
    epochs: int = 2
    shares: tuple[float, ...] | None = None
    order: str = "sequential"
    seed: int = 0
    drop_last: bool = False
    num_workers: int = 0
    accumulate: int = 1
    break_after: int | None = None

    def loader(self) -> DataLoader[Any]:
        options: dict[str, Any] = {}
        if self.order == "shuffled":
            options = {"shuffle": True}
        elif self.order == "generator":
            options = {"shuffle": True, "generator": torch.Generator().manual_seed(self.seed)}
        elif self.order == "sampler generator":
            generator = torch.Generator().manual_seed(self.seed)
            options = {"sampler": RandomSampler(range(self.samples), generator=generator)}
        elif self.order == "weighted":
            weights = [0.0, *[1.0] * (self.samples - 1)]
            options = {"sampler": WeightedRandomSampler(weights, self.samples)}
        elif self.order == "own":
            options = {"sampler": EvensBackwards(self.samples)}
        return DataLoader(
            TensorDataset(torch.eye(self.samples)),
            batch_size=self.batch,
            drop_last=self.drop_last,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            **options,
        )


def plain_batches(census: Census) -> list[list[set[int]]]:
    """Per epoch, the samples of each batch that a plain script in rank 0's place would draw."""
    torch.manual_seed(0)
    nn.Linear(census.samples, 1, bias=False)
    loader = census.loader()
    epochs = []
    for _ in range(census.epochs):
        batches: list[set[int]] = []
        for (x,) in loader:
            batches.append(set(x.argmax(1).tolist()))
            if len(batches) == census.break_after:
                break
        epochs.append(batches)
    return epochs


def take_census(census: Census) -> list[torch.Tensor]:
    """Per epoch: (steps, samples), how much of its step's gradient each sample was."""
    gangline.init(timeout_s=TIMEOUT_S)
    torch.manual_seed(own_rank())  # unlike seeds: the order must be agreed all the same
    model = nn.Linear(census.samples, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = gangline.prepare(
        model, optimizer, census.loader(), accumulate=census.accumulate, shares=census.shares
    )
    epochs = []
    for _ in gangline.epochs(census.epochs):
        steps: list[torch.Tensor] = []
        for (x,) in loader:
            model(x).mean().backward()
            if gangline.is_update():
                assert model.weight.grad is not None
                steps.append(model.weight.grad[0].clone())
                optimizer.step()
                optimizer.zero_grad()
            if len(steps) == census.break_after:
                break
        epochs.append(torch.stack(steps))
    return epochs


# --- a small job -------------------------------------------------------------------------------------


def small_job(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    gangline.init(timeout_s=TIMEOUT_S)
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(vectors(24), batch_size=8)
    model, optimizer, loader = gangline.prepare(model, optimizer, loader, **options)
    return model, optimizer, loader


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    x, y = batch
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()


# --- workers that differ -----------------------------------------------------------------------------


def differ(what: str, odd_one: int) -> str:
    """The error of `prepare` where the worker `odd_one` differs from the others in `what`."""
    is_odd = own_rank() == odd_one
    gangline.init(timeout_s=TIMEOUT_S)
    options = {
        "global_batch": {"global_batch": 9},
        "accumulate": {"accumulate": 2},
        "reduction": {"reduction": "sum"},
        "weight": {"weight": len},
        "shares": {"shares": (1.0, 2.0, 3.0)},
        "allocation": {"allocation": "equal"},
        "sync": {"sync": "flexible"},
    }
    loader_options = {"drop_last": {"drop_last": True}, "order": {"shuffle": True}}
    count = 25 if is_odd and what == "data" else 24
    width = 5 if is_odd and what == "shape" else 3
    model = nn.Sequential(nn.Linear(FEATURES, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    kind: Any = torch.optim.Adam if is_odd and what == "optimizer" else torch.optim.SGD
    if is_odd and what == "dtype":
        model[2].double()
    if is_odd and what == "frozen":
        model[2].requires_grad_(False)
    if is_odd and what == "layers":
        model.append(nn.Linear(1, 1))
    if is_odd and what == "buffers":
        model.register_buffer("table", torch.zeros(2))
    optimizer = kind(model.parameters(), lr=0.1)
    stateful = []
    if is_odd and what == "stateful":
        stateful = [torch.optim.lr_scheduler.StepLR(optimizer, 1)]
    loader = DataLoader(
        vectors(count), batch_size=8, **(loader_options.get(what, {}) if is_odd else {})
    )
    version = torch.__version__
    if is_odd and what == "torch":
        torch.__version__ = "1.0.0+cpu"  # type: ignore[assignment]
    given = options.get(what, {}) if is_odd else {}
    try:
        return message_of(
            lambda: gangline.prepare(model, optimizer, loader, stateful=stateful, **given)
        )
    finally:
        torch.__version__ = version


def start_from_unlike_states() -> tuple[dict[str, Any], dict[str, Any]]:
    """Everything's state before and after `prepare`, where each worker had a state of its own."""
    rank = own_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(
        nn.Linear(FEATURES, 3), nn.BatchNorm1d(3), nn.Linear(3, 1, dtype=torch.float32)
    )
    model.register_buffer("mask", torch.tensor([rank == 0, True]))
    model.register_buffer("table", torch.rand(2, dtype=torch.float64))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 / (rank + 1))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (rank + 4))
    for _ in range(3 - rank):
        model(torch.randn(4, FEATURES)).sum().backward()
        optimizer.step()
        scheduler.step()

    def states() -> dict[str, Any]:
        return {
            "model": {key: value.clone() for key, value in model.state_dict().items()},
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "scaler": scaler.state_dict(),
            "rate": optimizer.param_groups[0]["lr"],
        }

    before = states()
    gangline.init(timeout_s=TIMEOUT_S)
    loader = DataLoader(vectors(24), batch_size=8)
    gangline.prepare(model, optimizer, loader, stateful=[scheduler, scaler])
    return before, states()


# --- loops that differ -------------------------------------------------------------------------------


def drift(how: str) -> str:
    """The error where worker 1's loop does something else."""
    model, optimizer, loader = small_job()
    is_odd = gangline.rank() == 1

    def extra_backward() -> None:
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            if is_odd:
                F.mse_loss(model(x), y).backward()
            optimizer.step()

    def missing_backward() -> None:
        for index, batch in enumerate(loader):
            if not (is_odd and index == 1):
                train(model, optimizer, batch)

    def early_break() -> None:
        for _ in range(2):
            for batch in loader:
                train(model, optimizer, batch)
                if is_odd:
                    break

    def other_rate() -> None:
        for batch in loader:
            train(model, optimizer, batch)
            if is_odd:
                optimizer.param_groups[0]["lr"] *= 0.5

    def own_step() -> None:
        for index, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            if not (is_odd and index == 0):
                optimizer.step()

    def own_gradient() -> None:
        for x, y in loader:
            found = torch.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), found, strict=True):
                parameter.grad = gradient + (10 if is_odd else 0)
            optimizer.step()

    def own_model() -> None:
        for batch in loader:
            train(model, optimizer, batch)
        model.load_state_dict({k: v + is_odd for k, v in model.state_dict().items()})
        for batch in loader:
            train(model, optimizer, batch)

    def early_mean() -> None:
        for index, batch in enumerate(loader):
            if is_odd and index == 1:
                gangline.mean(1.0)
            train(model, optimizer, batch)

    def own_freezing() -> None:
        for index, batch in enumerate(loader):
            model.weight.requires_grad_(not (is_odd and index > 0))
            train(model, optimizer, batch)

    def other_shapes() -> None:
        gangline.mean(torch.ones(5 if is_odd else 2))

    return message_of(locals()[how])


# --- mistakes in the loop, the same on all workers ---------------------------------------------------


def mistake(which: str) -> str:
    """The error of a loop that does what is refused."""
    kept = torch.autograd.backward
    model, optimizer, loader = small_job()

    def before_the_first_batch() -> None:
        x, y = vectors(4)[:]
        F.mse_loss(model(x), y).backward()

    def after_the_last_batch() -> None:
        for batch in loader:
            train(model, optimizer, batch)
        before_the_first_batch()

    def zipped() -> None:
        for batch, _ in zip(loader, loader, strict=True):
            train(model, optimizer, batch)

    def unprepared() -> None:
        another = torch.optim.Adam(model.parameters())
        for batch in loader:
            train(model, another, batch)

    def step_in_backward() -> None:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda parameter: optimizer.step())
        for batch in loader:
            train(model, optimizer, batch)

    def other_dtype() -> None:
        for x, y in loader:
            model.double()
            train(model, optimizer, (x.double(), y.double()))

    def added_group() -> None:
        for batch in loader:
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
            train(model, optimizer, batch)

    def assigned() -> None:
        for batch in loader:
            model.load_state_dict(nn.Linear(FEATURES, 1).state_dict(), assign=True)
            train(model, optimizer, batch)

    def same_form() -> None:
        for batch in loader:
            model.weight.data = torch.ones(1, FEATURES)
            nn.utils.vector_to_parameters(torch.ones(FEATURES + 1), model.parameters())
            train(model, optimizer, batch)

    def kept_backward() -> None:
        """A name that somebody imported before `prepare` could wrap the function."""
        for x, y in loader:
            kept(F.mse_loss(model(x), y))
            optimizer.step()

    def graph_kept() -> None:
        for x, y in loader:
            F.mse_loss(model(x), y).backward(create_graph=True)

    def another_order() -> None:
        """Every second batch is computed before the one that was fetched before it."""
        batches = iter(loader)
        for first in batches:
            for batch in (next(batches), first):
                train(model, optimizer, batch)

    def several_batches() -> None:
        """In a loop that is known to fetch ahead."""
        batches = iter(loader)
        present, following = next(batches), next(batches)
        train(model, optimizer, present)
        present, following = following, next(batches)
        losses = [F.mse_loss(model(x), y) for x, y in (present, following)]
        (losses[0] + losses[1]).backward()

    return message_of(locals()[which])


def sparse() -> str:
    gangline.init(timeout_s=TIMEOUT_S)
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.arange(8) % 4), batch_size=4)
    model, optimizer, loader = gangline.prepare(model, optimizer, loader)

    def loop() -> None:
        for (x,) in loader:
            model(x).sum().backward()

    return message_of(loop)


# --- metrics -----------------------------------------------------------------------------------------


def metrics(count: int, shares: tuple[float, ...]) -> dict[str, Any]:
    """Evaluation of `count` samples whose value is their index, before and after `prepare`."""
    gangline.init(timeout_s=TIMEOUT_S)
    test_loader = DataLoader(TensorDataset(torch.arange(float(count))), batch_size=3)
    found: dict[str, Any] = {}

    def evaluate() -> tuple[list[float], float]:
        seen = [value for (x,) in gangline.evaluate(test_loader) for value in x.tolist()]
        local = sum(seen) / len(seen) if seen else float("nan")
        return seen, gangline.mean(local, weight=len(seen))

    found["equal"] = evaluate()
    small_job(shares=shares)
    found["by share"] = evaluate()
    rank = gangline.rank()
    found["tensor"] = gangline.mean(torch.tensor([rank, 1.0]), weight=rank)
    found["nothing"] = gangline.mean(1.0, weight=0)
    return found


# --- faults ------------------------------------------------------------------------------------------


def users_own_function(batch: Any) -> None:
    raise KeyError(f"no such label for {len(batch)} tensors")


def raise_in_the_loop() -> None:
    model, optimizer, loader = small_job()
    for index, batch in enumerate(loader):
        if index == 1 and gangline.rank() == 1:
            users_own_function(batch)
        train(model, optimizer, batch)


def die_in_backward(victim: int) -> None:
    """The victim is killed in the middle of its second backward pass."""
    model, optimizer, loader = small_job()
    for index, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        output = model(x)
        if index == 1 and gangline.rank() == victim:
            output.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        F.mse_loss(output, y).backward()
        optimizer.step()
