# SPDX-License-Identifier: Apache-2.0
"""The exchange between leaders, when it fails: the other teams are told, whatever the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from torch import nn

from gangline.protocol.messages import RoundOpened
from gangline.spec.errors import ExchangeError
from gangline.spec.sync import parse_sync
from gangline.worker.prepare.prepared import Prepared
from gangline.worker.sync.teams.leaders import Exchange, Leaders, Mean
from gangline.worker.sync.teams.merging import MAX_FAULTS, Merging
from gangline.worker.sync.teams.replica import Copy, Replica
from memory_members import MemoryGroup, run_in_memory

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


def exchanged(copies: list[torch.Tensor], samples: list[int]) -> list[torch.Tensor]:
    """What leaders of teams with these copies get."""
    opened = RoundOpened(
        number=0,
        group=0,
        is_whole=False,
        level=0,
        leaders=tuple(range(len(copies))),
        addresses=(),
    )

    def exchange(group: MemoryGroup) -> torch.Tensor:
        door = SimpleNamespace(connect_beside=lambda key, **options: group)
        leaders = Leaders(door, run="run", worker=group.rank)  # type: ignore[arg-type]
        copy = Copy(copies[group.rank], ())
        return leaders.exchange(opened, copy, torch.zeros(2), samples[group.rank]).copy.values

    return run_in_memory(len(copies), exchange)


def test_a_team_whose_values_are_not_numbers_counts_nothing() -> None:
    copies = [torch.tensor([1.0, 2.0]), torch.tensor([float("nan"), 5.0]), torch.tensor([4.0, 5.0])]
    for found in exchanged(copies, [10, 1000, 20]):
        assert torch.equal(found, torch.tensor([3.0, 4.0]))


def test_where_no_teams_values_are_numbers_nothing_is_hidden() -> None:
    copies = [torch.tensor([float("nan"), 2.0]), torch.tensor([float("inf"), 2.0])]
    for found in exchanged(copies, [1, 1]):
        assert torch.isnan(found[0])


def test_values_whose_sum_overflows_are_numbers() -> None:
    assert Copy(torch.full((4,), 3e38), ()).is_finite
    assert not Copy(torch.tensor([0.0, float("inf")]), ()).is_finite


def test_a_team_that_is_no_number_gets_the_mean_and_begins_its_optimizer_anew() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    momentum.fill_(float("inf"))
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    events: list[Any] = []
    merging = Merging.__new__(Merging)
    merging._replica = Replica(Prepared(models=[model], optimizers=[optimizer], stateful=[]))
    merging._place = SimpleNamespace(worker=1)  # type: ignore[assignment]
    merging._session = SimpleNamespace(record=events.append)  # type: ignore[assignment]
    merging._common, merging._mark, merging._momentum = {}, (0, 8), None
    merging._exchange = None
    merging._copy = merging._replica.copy(is_whole=False)
    opened = RoundOpened(number=3, group=0, is_whole=False, level=0, leaders=(0, 1), addresses=())
    merging._apply(opened, Copy(torch.tensor([1.0, 2.0]), ()), parse_sync("flexible"))
    assert torch.equal(model.weight.detach(), torch.tensor([[1.0, 2.0]]))
    assert torch.equal(momentum, torch.zeros(1, 2))
    (said,) = events
    assert (said.what, said.numbers) == ("begin_anew", {"worker": 1.0, "round": 3.0})
    assert "a learning rate that fits the whole batch may be too high" in said.reason
    assert merging._drift(float("nan"), 1.0) == 0.0
