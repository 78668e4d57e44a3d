# SPDX-License-Identifier: Apache-2.0
"""Takes the pieces of a tensor through the levels of a tree: up, across at the top, and back.

A member that speaks at several levels has a thread for each, so that piece k + 1 is summed inside
while piece k is summed across. Each level takes its pieces in an order of its own that is the same on
all of its members: with d levels above, a piece comes back after d more have gone up.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from gangline.collectives.hierarchy.levels import naming
from gangline.spec.errors import ExchangeAborted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from gangline.collectives.hierarchy.levels import Key, Level
    from gangline.collectives.protocol import Header


class Piece(NamedTuple):
    """A part of the tensor."""

    rising: Tensor
    """What is summed on the way up."""
    result: Tensor
    """Where the result goes: the same memory, unless sums are made in a wider type."""
    header: Header | None
    key: Key | None
    """Names a piece of the gradient, to levels that compress it; None is never compressed."""


class Pipeline:
    """One all-reduce of one member."""

    def __init__(
        self, levels: Sequence[Level], pieces: Sequence[Piece], *, break_off: Callable[[], None]
    ) -> None:
        """`break_off` makes whatever goes on at other levels fail."""
        self._levels, self._pieces, self._break_off = levels, pieces, break_off
        self._changed = threading.Condition()
        self._num_up = [0] * len(levels)
        self._num_back = [0] * len(levels)
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Returns when all pieces are back; raises what failed first."""
        if len(self._pieces) == 1:
            self._run_in_turn()
            return
        threads = [
            threading.Thread(
                target=self._drive, args=(index,), name=f"gangline-level-{index}", daemon=True
            )
            for index in range(1, len(self._levels))
        ]
        for thread in threads:
            thread.start()
        self._drive(0)
        for thread in threads:
            thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # it refers to this frame, which must not refer to it

    def _run_in_turn(self) -> None:
        """Nothing can overlap, so this thread does it all."""
        last = len(self._levels) - 1
        for index in range(last + 1):
            self._raise_piece(index, 0)
        for index in range(last, -1, -1):
            self._return_piece(index, 0)

    def _drive(self, index: int) -> None:
        """Makes the exchanges of one level."""
        try:
            for is_up, number in schedule(len(self._pieces), lag=self._levels[index].seat.depth):
                if is_up:
                    self._await(self._num_up, index - 1, number)
                    self._raise_piece(index, number)
                    self._note(self._num_up, index)
                else:
                    self._await(self._num_back, index + 1, number)
                    self._return_piece(index, number)
                    self._note(self._num_back, index)
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()
            self._break_off()

    def _raise_piece(self, index: int, number: int) -> None:
        level, piece = self._levels[index], self._pieces[number]
        with naming(level.seat):
            if not level.seat.is_top:
                level.reduce(piece.rising, piece.header, key=piece.key)
                return
            level.total(piece.rising, piece.header, key=piece.key)
        if piece.result is not piece.rising:
            piece.result.copy_(piece.rising)

    def _return_piece(self, index: int, number: int) -> None:
        level, piece = self._levels[index], self._pieces[number]
        if not level.seat.is_top:
            with naming(level.seat):
                level.spread(piece.result, piece.header)

    def _await(self, counts: list[int], index: int, number: int) -> None:
        """Waits until another level of this member is done with a piece."""
        if not 0 <= index < len(counts):
            return
        with self._changed:
            self._changed.wait_for(lambda: counts[index] > number or self._failure is not None)
            if self._failure is not None:
                raise ExchangeAborted("another level of the tree failed")

    def _note(self, counts: list[int], index: int) -> None:
        with self._changed:
            counts[index] += 1
            self._changed.notify_all()


def schedule(count: int, *, lag: int) -> Iterator[tuple[bool, int]]:
    """The order of `count` pieces at one level: (whether it goes up, which one)."""
    for number in range(count + lag):
        if number < count:
            yield True, number
        if number >= lag:
            yield False, number - lag
