# SPDX-License-Identifier: Apache-2.0
"""A Ray data set whose rows have numbers: an actor that runs it once, and knows where its blocks are.

Blocks come as a stream, in the order of the data set, and stay in Ray's object store (which spills to
disk): so every row has one number for the whole run, whoever asks for it and however often. Which rows
are whose, each exactly once per epoch, is the ledger's business, as with any data set.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Block(NamedTuple):
    """Some rows that follow each other."""

    first: int
    """The number of its first row."""
    rows: int
    offset: int
    """Where in the object they begin."""
    refs: list[Any]
    """The object, in a list, so that Ray does not fetch it for who is told of it."""


class Source:
    """Runs a data set. Ray makes an actor of it, which several threads may ask."""

    def __init__(self, dataset: Any, length: int | None = None) -> None:
        """Whoever knows how many rows there are saves running all of it before the first step."""
        self._dataset = dataset
        # Rows are known by their numbers: a data set that is run again must give the same ones.
        dataset.context.execution_options.preserve_order = True
        self._lock = threading.Lock()
        self._blocks: list[Block] = []
        self._stream: Iterator[Block] | None = None
        self._length = length if length is not None else _known_length(dataset)

    def length(self) -> int:
        """How many rows there are. Where nobody knows, the data set is run to its end for it."""
        with self._lock:
            if self._length is None:
                while self._next() is not None:
                    pass
                self._length = self._end
            return self._length

    def blocks(self, known: int, row: int) -> list[Block]:
        """The blocks behind the first `known` ones, up to the one with this row."""
        with self._lock:
            while self._end <= row:
                if self._next() is None:
                    raise IndexError(
                        f"there is no row {row}: the data set had {self._end} rows when it was run"
                    )
            return self._blocks[known:]

    @property
    def _end(self) -> int:
        """How many rows have come."""
        return self._blocks[-1].first + self._blocks[-1].rows if self._blocks else 0

    def _next(self) -> Block | None:
        """One more block of the stream; None: there are no more."""
        if self._stream is None:
            self._stream = _stream(self._dataset)
        block = next(self._stream, None)
        if block is not None:
            self._blocks.append(block)
        return block


def _known_length(dataset: Any) -> int | None:
    """What Ray knows of it without running it, as of files that say so themselves."""
    ask = getattr(dataset, "_meta_count", None)  # not documented: without it, all is run first
    known = None if ask is None else ask()
    return None if known is None else int(known)


def _stream(dataset: Any) -> Iterator[Block]:
    first = 0
    for bundle in dataset.iter_internal_ref_bundles():
        slices = bundle.slices or (None,) * len(bundle.blocks)
        for entry, part in zip(bundle.blocks, slices, strict=True):
            start = 0 if part is None else part.start_offset
            rows = entry.metadata.num_rows if part is None else part.end_offset - part.start_offset
            if rows:
                yield Block(first, rows, start, [entry.ref])
                first += rows
