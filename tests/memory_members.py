# SPDX-License-Identifier: Apache-2.0
"""Members of a group inside one process, for tests of what is exchanged rather than how."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from wire_members import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from gangline.collectives import Header
    from gangline.spec.exchange.hop import HopStats

T = TypeVar("T")


class MemoryGroup:
    """One member; all of them share a table that they fill and read in step."""

    transport = "memory"

    def __init__(self, rank: int, table: list[object], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(table)
        self._table, self._barrier = table, barrier

    def all_reduce(self, tensor: Tensor, header: Header | None = None) -> None:
        if header is not None:
            header[:] = np.maximum.reduce(self._everybodys(header.copy()))
        tensor.copy_(sum(self._everybodys(tensor.clone()), torch.zeros_like(tensor)))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return self._everybodys(tensor.clone())

    def hops(self) -> list[HopStats]:
        return []

    def _everybodys(self, own: T) -> list[T]:
        self._table[self.rank] = own
        self._barrier.wait(10)
        rows = list(self._table)
        self._barrier.wait(10)
        return rows  # type: ignore[return-value]


def run_in_memory(count: int, body: Callable[[MemoryGroup], T]) -> list[T]:
    """Runs the body on every member at the same time."""
    table: list[object] = [None] * count
    barrier = threading.Barrier(count)

    def member(rank: int) -> T:
        try:
            return body(MemoryGroup(rank, table, barrier))
        except BaseException:
            barrier.abort()
            raise

    return in_threads(count, member)
