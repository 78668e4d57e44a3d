# SPDX-License-Identifier: Apache-2.0
"""What members of a team are handed, and what a worker that updates by itself has changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from gangline.collectives import SoloGroup
from gangline.worker.sync.served.sharing import Sharing
from gangline.worker.sync.served.touched import LocalChanges, joined, sparse_gradients
from wire_members import run_members

if TYPE_CHECKING:
    from gangline.collectives import Group

ROWS = 8


def parameters(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(ROWS, 3, generator=generator),
        torch.randn(4, generator=generator),
        torch.randn(2, 2, generator=generator).double(),
    ]


class Counting:
    """Counts what a group broadcasts."""

    def __init__(self, group: Group) -> None:
        self._group, self.rank, self.size = group, group.rank, group.size
        self.num_bytes = 0

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        self.num_bytes += tensor.nbytes
        self._group.broadcast(tensor, root)


def session(group: Any) -> Any:
    communicator = SimpleNamespace(call=lambda exchange: exchange(group))
    return SimpleNamespace(group=group, communicator=communicator)


def test_the_first_share_is_of_everything_and_the_next_of_what_has_changed() -> None:
    def member(wire: Group) -> list[Any]:
        group, own = Counting(wire), parameters(wire.rank)
        sharing = Sharing(session(group), own)
        told, shared = sharing.share([10 + wire.rank, 3])
        assert told == [10, 3]
        assert shared == {0: None, 1: None, 2: None}
        whole, group.num_bytes = group.num_bytes, 0
        if wire.rank == 0:
            own[0][[2, 5]] += 1.0
            own[2][0] -= 1.0
            sharing.note({0: torch.tensor([5]), 2: None})
            sharing.note({0: torch.tensor([2])})
        _, shared = sharing.share([0, 0])
        assert sorted(shared) == [0, 2]
        assert shared[0].tolist() == [2, 5]
        assert group.num_bytes < whole - 4 * 3 * (ROWS - 4)
        _, shared = sharing.share([0, 0])
        assert shared == {}
        return own

    first, second = run_members(2, member)
    wanted = parameters(0)
    wanted[0][[2, 5]] += 1.0
    wanted[2][0] -= 1.0
    for own in (first, second):
        assert all(torch.equal(a, b) for a, b in zip(own, wanted, strict=True))


def test_a_share_that_breaks_off_is_followed_by_one_of_everything() -> None:
    """The leader has gone on; the other member has got the numbers, and not the values."""

    class Breaking(Counting):
        is_broken = False

        def broadcast(self, tensor: torch.Tensor, root: int) -> None:
            if self.is_broken and tensor.is_floating_point():
                raise ConnectionError
            super().broadcast(tensor, root)

    def first(groups: Any, own: list[torch.Tensor]) -> Sharing:
        group = Breaking(groups)
        sharing = Sharing(session(group), own)
        sharing.share([0])
        if group.rank == 0:
            own[0][1] = 7.0
            sharing.note({0: torch.tensor([1])})
        group.is_broken = True
        with pytest.raises(ConnectionError):
            sharing.share([0])
        return sharing

    owns = [parameters(rank) for rank in (0, 1)]
    made = run_members(2, lambda wire: first(wire, owns[wire.rank]))

    def again(wire: Group) -> Any:
        sharing = made[wire.rank]
        sharing._session = session(Counting(wire))
        return sharing.share([0])[1]

    assert run_members(2, again) == [dict.fromkeys(range(3))] * 2
    assert all(torch.equal(a, b) for a, b in zip(*owns, strict=True))
    assert owns[1][0][1].tolist() == [7.0] * 3


def test_who_is_alone_shares_with_nobody() -> None:
    sharing = Sharing(session(SoloGroup()), parameters())
    assert not sharing.is_needed
    sharing.note({0: None})
    assert sharing._unshared == {}


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}, True),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.5}, False),
    "sparse_adam": (torch.optim.SparseAdam, {"lr": 0.1}, True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_ones_own_changes_the_rows_of_its_gradient(name: str) -> None:
    kind, options, is_by_rows = OPTIMIZERS[name]
    table, other = nn.Parameter(torch.ones(ROWS, 2)), nn.Parameter(torch.ones(ROWS, 2))
    optimizer = kind([table, other], **options)
    local = LocalChanges([table, other])
    local.begin()
    whole = torch.zeros(ROWS, 2)
    whole[[2, 6]] = 1.0
    table.grad = whole
    with sparse_gradients(optimizer, {id(table): torch.tensor([2, 6])}) as changed:
        assert (table.grad.layout == torch.sparse_coo) == is_by_rows
        optimizer.step()
    assert table.grad is whole
    assert 1 not in changed or not is_by_rows
    local.note(changed)
    difference, nothing = local.differences()
    assert (difference.layout == torch.sparse_coo) == is_by_rows
    assert torch.equal(difference.to_dense(), table.detach() - 1.0)
    assert (nothing is None) == is_by_rows
    local.rebase({})
    assert torch.equal(local.base[0], table.detach())
    assert local.differences() == [None, None]
    with torch.no_grad():
        table[3] = 9.0  # a pull has written it
    local.rebase({0: torch.tensor([3])})
    local.add([difference, None])
    again, _ = local.differences()
    assert torch.allclose(again.to_dense(), difference.to_dense())


def test_what_two_have_changed() -> None:
    both = joined({0: torch.tensor([1]), 1: None}, {0: torch.tensor([0]), 2: torch.tensor([5])})
    assert both[0].tolist() == [0, 1]
    assert both[1] is None
    assert both[2].tolist() == [5]
