# SPDX-License-Identifier: Apache-2.0
"""A worker finds that the others go on without it: it may go, or was put out while it hung."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gangline.collectives import SoloGroup
from gangline.spec.errors import ExchangeAborted
from gangline.worker.loop.progress import Progress
from gangline.worker.loop.recovery import Recovery


class Known(Recovery):
    """Its gear is known only as far as this needs it."""

    def __init__(self, *, is_allowed: bool) -> None:
        self.failed: list[Exception] = []
        self.done: list[str] = []
        membership: Any = SimpleNamespace(fail=lambda error, position: self.failed.append(error))
        departure = SimpleNamespace(is_allowed=is_allowed)
        gear: Any = SimpleNamespace(
            membership=membership, departure=departure, gradients=None, snapshot=None, views=None
        )
        super().__init__(gear, Progress(), shares=None)

    def leave(self) -> None:
        self.done.append("left")

    def recover(self) -> None:
        self.done.append("recovered")


def test_a_worker_that_was_let_go_leaves() -> None:
    worker = Known(is_allowed=True)
    worker.part()
    assert (worker.done, worker.failed) == (["left"], [])


def test_a_worker_that_was_put_out_says_so_and_comes_back() -> None:
    worker = Known(is_allowed=False)
    worker.part()
    assert worker.done == ["recovered"]
    assert "gone on without this worker" in str(worker.failed[0])


def test_a_group_of_one_that_was_given_up_exchanges_nothing_more() -> None:
    group, tensor = SoloGroup(), torch.ones(2)
    group.all_reduce(tensor)
    group.abort()
    for exchange in (group.all_reduce, group.all_gather, group.reduce_scatter):
        with pytest.raises(ExchangeAborted, match="given up"):
            exchange(tensor)
    with pytest.raises(ExchangeAborted, match="given up"):
        group.broadcast(tensor, 0)
