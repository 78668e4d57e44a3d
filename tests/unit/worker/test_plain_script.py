# SPDX-License-Identifier: Apache-2.0
"""A job of one is the plain script: the same parameters, order and random numbers, to the last bit."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from runtime_jobs import LAUNCHERS
from torch import nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import gangline
from gangline.worker import api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COUNT = 23
DATA = TensorDataset(torch.arange(COUNT), torch.linspace(-1, 1, COUNT * 4).view(COUNT, 4))


class Late(Sampler[int]):
    """Draws each index from torch's global numbers when it is asked for, and once more at its end."""

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        for _ in range(COUNT):
            yield int(torch.randint(COUNT, ()))
        torch.rand(3)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "sequential": dict,
    "shuffle": lambda: {"shuffle": True},
    "loader generator": lambda: {"shuffle": True, "generator": generator()},
    "sampler generator": lambda: {"sampler": RandomSampler(DATA, generator=generator())},
    "own generators": lambda: {
        "sampler": RandomSampler(DATA, generator=generator()),
        "generator": generator(),
    },
    "replacement": lambda: {"sampler": RandomSampler(DATA, replacement=True)},
    "some": lambda: {"sampler": RandomSampler(DATA, num_samples=9, generator=generator())},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(0, COUNT, 2))},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0, 2.0] * 11, COUNT)},
    "late": lambda: {"sampler": Late()},
}


@dataclass(frozen=True)
class Script:
    """What both runs do."""

    order: str
    num_workers: int = 0
    drop_last: bool = False
    break_after: int | None = None
    is_persistent: bool = False
    checkpoint: Path | None = None


@dataclass(frozen=True)
class End:
    """Everything in which the two could differ."""

    state: dict[str, torch.Tensor]
    used: list[list[int]]
    numbers: list[torch.Tensor]
    python_numbers: Any


def run(script: Script, *, is_plain: bool) -> End:
    """Two epochs of a model with dropout, as they are or prepared."""
    torch.manual_seed(1)
    random.seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options = ORDERS[script.order]()
    loader: Any = DataLoader(
        DATA,
        batch_size=6,
        num_workers=script.num_workers,
        persistent_workers=script.is_persistent,
        drop_last=script.drop_last,
        **options,
    )
    held_out: Any = DataLoader(DATA, batch_size=6, shuffle=True)
    if not is_plain:
        gangline.init()
        model, optimizer, loader = gangline.prepare(
            model, optimizer, loader, checkpoint=script.checkpoint
        )
        held_out = gangline.evaluate(held_out)
    used: list[list[int]] = []
    for _ in range(2):
        for places, x in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
            used.append(places.tolist())
            if len(used) % 7 == script.break_after:
                break
        with torch.no_grad():
            used += [places.tolist() for places, _ in held_out]
    if not is_plain:
        api.shutdown()
    sources = [torch.default_generator, options.get("generator")]
    sources.append(getattr(options.get("sampler"), "generator", None))
    return End(
        state=model.state_dict(),
        used=used,
        numbers=[source.get_state() for source in sources if source is not None],
        python_numbers=random.getstate(),
    )


@pytest.fixture(autouse=True)
def nobody_launched_us(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_rng_state()
    yield
    api.shutdown()
    torch.set_rng_state(before)


def assert_same(script: Script) -> None:
    plain, job = run(script, is_plain=True), run(script, is_plain=False)
    assert job.used == plain.used
    for name, value in plain.state.items():
        assert torch.equal(job.state[name], value), name
    assert all(map(torch.equal, job.numbers, plain.numbers))
    assert job.python_numbers == plain.python_numbers


@pytest.mark.parametrize("order", ORDERS)
def test_a_job_of_one_is_the_plain_script(order: str) -> None:
    assert_same(Script(order))


@pytest.mark.parametrize("order", ["shuffle", "loader generator", "sampler generator", "late"])
@pytest.mark.parametrize(
    "changes",
    [
        {"num_workers": 2},
        {"num_workers": 2, "is_persistent": True},
        {"drop_last": True},
        {"break_after": 2},
        {"break_after": 4},  # in the last batch, which is ragged
        {"break_after": 2, "num_workers": 1},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_however_the_loader_is_made_and_left(order: str, changes: dict[str, Any]) -> None:
    assert_same(Script(order, **changes))


@pytest.mark.parametrize("order", ["shuffle", "loader generator", "weighted"])
def test_checkpoints_change_nothing(order: str, tmp_path: Path) -> None:
    assert_same(Script(order, checkpoint=tmp_path))
