# SPDX-License-Identifier: Apache-2.0
"""Gives a worker rows by their numbers: in its actor, from blocks in Ray's object store."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from gangline.engines.ray.data.columns import pack

if TYPE_CHECKING:
    from gangline.engines.ray.data.source import Block
    from gangline.engines.ray.services.framing import Request

_OPEN_BLOCKS = 8
"""So many blocks are held for the next request."""
_TRIES = 3


class RowService:
    """The rows of one data set."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._lock: Any = None
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        self._open: OrderedDict[int, Any] = OrderedDict()

    def answer(self, request: Request, data: bytes) -> tuple[dict[str, Any], Any]:
        """How many rows there are, or some of them, column by column."""
        import ray

        if request.what == "length":
            return {"length": ray.get(self._source.length.remote())}, b""
        wanted = np.frombuffer(data, dtype=np.int64)
        if self._lock is None:
            self._lock = threading.Lock()
        with self._lock:
            for attempt in range(1, _TRIES + 1):
                try:
                    return pack(self._take(wanted))
                except (ray.exceptions.ObjectLostError, ray.exceptions.RayActorError):
                    # The source was lost, with what it had: another one runs the data set again.
                    self._blocks, self._firsts = [], []
                    self._open.clear()
                    if attempt == _TRIES:
                        raise
        raise AssertionError("unreachable")

    def _take(self, wanted: np.ndarray[Any, Any]) -> dict[str, Any]:
        """The rows in the order in which they were asked for."""
        self._learn(int(wanted.max()))
        places = np.array([bisect_right(self._firsts, row) - 1 for row in wanted])
        parts, order = [], []
        for place in np.unique(places):
            chosen = np.flatnonzero(places == place)
            block = self._blocks[place]
            parts.append(self._rows_of(int(place), wanted[chosen] - block.first + block.offset))
            order.append(chosen)
        back = np.argsort(np.concatenate(order), kind="stable")
        return {name: np.concatenate([one[name] for one in parts])[back] for name in parts[0]}

    def _learn(self, row: int) -> None:
        import ray

        if self._blocks and row < self._blocks[-1].first + self._blocks[-1].rows:
            return
        new = ray.get(self._source.blocks.remote(len(self._blocks), row))
        self._blocks += new
        self._firsts += [block.first for block in new]

    def _rows_of(self, place: int, rows: np.ndarray[Any, Any]) -> dict[str, Any]:
        import ray
        from ray.data.block import BlockAccessor

        if place not in self._open:
            self._open[place] = ray.get(self._blocks[place].refs[0])
            while len(self._open) > _OPEN_BLOCKS:
                self._open.popitem(last=False)
        self._open.move_to_end(place)
        taken = BlockAccessor.for_block(self._open[place]).take(rows.tolist())
        columns: dict[str, Any] = BlockAccessor.for_block(taken).to_numpy()
        return columns

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self._source}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["source"])  # type: ignore[misc]
