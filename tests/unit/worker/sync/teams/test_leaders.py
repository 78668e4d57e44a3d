# SPDX-License-Identifier: Apache-2.0
"""The exchange between leaders, when it fails: the other teams are told, whatever the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from gangline.protocol.messages import RoundOpened
from gangline.spec.errors import ExchangeError
from gangline.worker.sync.teams.leaders import Exchange, Leaders, Mean
from gangline.worker.sync.teams.merging import MAX_FAULTS, Merging
from gangline.worker.sync.teams.replica import Copy

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 10.0


def failing(error: Exception) -> Callable[[], Mean]:
    def run() -> Mean:
        raise error

    return run


@pytest.mark.parametrize(
    "error",
    [
        ExchangeError("team 1 is gone"),
        MemoryError("no room for the sum"),
        msgspec.DecodeError("a row that nobody can read"),
    ],
)
def test_the_others_are_told_whatever_ends_an_exchange(error: Exception) -> None:
    told: list[str] = []
    exchange = Exchange(failing(error), told.append)
    exchange.wait(WAIT_S)
    assert not exchange.is_under_way
    assert len(told) == 1
    assert str(error) in told[0]
    assert exchange.fault is (None if isinstance(error, ExchangeError) else error)


class BrokenGroup:
    """A group whose members cannot read each other."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.is_closed = False

    def all_reduce(self, values: torch.Tensor) -> None:
        raise MemoryError("no room")

    all_gather = broadcast = all_reduce

    def __getattr__(self, name: str) -> Any:
        raise msgspec.DecodeError(f"{name}: strange")

    def abort(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class BrokenDoor:
    """Leads to a broken group."""

    def __init__(self) -> None:
        self.group = BrokenGroup()

    def connect_beside(self, key: Any, **options: Any) -> BrokenGroup:
        return self.group


def test_a_group_in_which_an_exchange_went_wrong_is_not_used_again() -> None:
    door = BrokenDoor()
    leaders = Leaders(door, run="run", worker=0)  # type: ignore[arg-type]
    opened = RoundOpened(number=0, group=0, is_whole=False, level=0, leaders=(0, 1), addresses=())
    copy = Copy(torch.zeros(4), ())
    with pytest.raises((MemoryError, msgspec.DecodeError)):
        leaders.exchange(opened, copy, torch.zeros(4), samples=8)
    assert door.group.is_closed


def test_a_team_that_is_alone_keeps_its_values_as_they_are() -> None:
    leaders = Leaders(BrokenDoor(), run="run", worker=0)  # type: ignore[arg-type]
    opened = RoundOpened(
        number=0, group=0, is_whole=True, level=0, leaders=(0,), addresses=(), compression="bf16"
    )
    generator = torch.Generator().manual_seed(0)
    values, reference = torch.randn(2, 1000, generator=generator)
    mean = leaders.exchange(opened, Copy(values.clone(), ()), reference, samples=8)
    assert torch.equal(mean.copy.values, values), "nothing is encoded, nor rounded, for oneself"
    assert mean.sent_bytes == 0


def test_only_a_compressed_exchange_is_undone() -> None:
    leaders = Leaders(BrokenDoor(), run="run", worker=0)  # type: ignore[arg-type]
    undone: list[bool] = []
    leaders._compressor = SimpleNamespace(undo=lambda: undone.append(True))  # type: ignore[assignment]
    opened = RoundOpened(
        number=0, group=0, is_whole=True, level=0, leaders=(0,), addresses=(), compression="bf16"
    )
    leaders.exchange(opened, Copy(torch.ones(4), ()), torch.zeros(4), samples=8)
    leaders.undo()
    assert not undone, "what the exchange before left out was sent, and counts"


def test_a_fault_that_comes_again_and_again_is_raised() -> None:
    merging = Merging.__new__(Merging)
    merging._num_faults = 0
    fault = MemoryError("no room")
    for _ in range(MAX_FAULTS - 1):
        merging._judge(fault)
    merging._judge(None)
    for _ in range(MAX_FAULTS - 1):
        merging._judge(fault)
    with pytest.raises(MemoryError, match="no room"):
        merging._judge(fault)
