# SPDX-License-Identifier: Apache-2.0
"""Who computes which rows, so that each counts once per epoch whoever is lost or late. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from gangline.local.table import Indices

if TYPE_CHECKING:
    from collections.abc import Sequence


class Portion(msgspec.Struct, frozen=True):
    """What one update is computed from: some batches of one epoch."""

    epoch: int
    owner: int
    """Whose rows they are by the partition; somebody else may compute them."""
    index: int
    first_batch: int
    batches: tuple[Indices, ...]

    @property
    def num_rows(self) -> int:
        """How many rows all its batches have."""
        return sum(len(batch) for batch in self.batches)


class Done(msgspec.Struct, frozen=True):
    """What was applied, as plain data."""

    epochs: tuple[int, ...] = ()
    """Those that are over."""
    portions: tuple[tuple[int, int, int], ...] = ()
    """Epoch, owner and index of those of other epochs."""


class _Epoch(msgspec.Struct):
    own: dict[int, deque[int]]
    """What each worker has left of its own rows."""
    free: deque[tuple[int, int, int | None]]
    """Owner and index of what anybody may take, and who was late with it."""
    unapplied: int


class Ledger:
    """The portions of all epochs. Rows of who is lost, and of updates that came late, are anybody's."""

    def __init__(
        self,
        parts: Sequence[Indices],
        *,
        batch_size: int,
        per_push: int | None,
        epochs: int,
        in_step: bool,
        shared: bool = False,
        done: Done | None = None,
    ) -> None:
        """What is to be done, but for what is `done`.

        `in_step`: an epoch begins when the one before is over. `shared`: who has no rows left in
        an epoch helps who has most.
        """
        self._cuts = [_cut(part, batch_size, per_push) for part in parts]
        self._epochs = epochs
        self._in_step = in_step
        self._shared = shared
        self._at = dict.fromkeys(range(len(parts)), 0)
        self._lost: set[int] = set()
        self._open: dict[int, _Epoch] = {}
        self._over = set(done.epochs if done else ())
        self._applied = set(done.portions if done else ())

    @property
    def is_done(self) -> bool:
        """Whether all rows of all epochs were applied."""
        return len(self._over) == self._epochs

    @property
    def done(self) -> Done:
        """What was applied so far."""
        return Done(tuple(sorted(self._over)), tuple(sorted(self._applied)))

    def has_work(self, worker: int, *, others_idle: bool) -> bool:
        """Whether `take` would give something."""
        return self._find(worker, others_idle=others_idle) is not None

    def take(self, worker: int, *, others_idle: bool) -> Portion | None:
        """What a worker computes next: what is left of early epochs first, its own before others'.

        What it was late with is not for it again while others have nothing to do.
        """
        found = self._find(worker, others_idle=others_idle)
        if found is None:
            return None
        epoch, owner, place = found
        one = self._open[epoch]
        if place is None:
            left = one.own[owner]
            return self.portion(epoch, owner, left.popleft() if owner == worker else left.pop())
        owner, index, _ = one.free[place]
        del one.free[place]
        return self.portion(epoch, owner, index)

    def give_back(self, portion: Portion, *, late: int | None = None) -> None:
        """A portion was not applied: anybody may take it. `late`: who was too slow with it."""
        self._open[portion.epoch].free.append((portion.owner, portion.index, late))

    def apply(self, portion: Portion) -> bool:
        """A portion is in the model. Whether its epoch is over by it."""
        self._applied.add((portion.epoch, portion.owner, portion.index))
        one = self._open[portion.epoch]
        one.unapplied -= 1
        if one.unapplied:
            return False
        del self._open[portion.epoch]
        self._over.add(portion.epoch)
        self._applied = {key for key in self._applied if key[0] != portion.epoch}
        return True

    def lose(self, worker: int) -> None:
        """A worker is gone: its rows are anybody's, in this epoch and in all others."""
        self._lost.add(worker)
        for one in self._open.values():
            one.free.extend((worker, index, None) for index in one.own.pop(worker, ()))

    def portion(self, epoch: int, owner: int, index: int) -> Portion:
        """The `index`-th portion of an owner's rows, in an epoch."""
        first_batch, batches = self._cuts[owner][index]
        return Portion(epoch, owner, index, first_batch, batches)

    def _find(self, worker: int, *, others_idle: bool) -> tuple[int, int, int | None] | None:
        """The epoch, whose rows, and the place among those that are free, if they are."""
        while True:
            self._enter(self._at[worker])
            for epoch in sorted(self._open):
                if epoch > self._at[worker]:
                    break
                found = self._find_in(self._open[epoch], worker, others_idle=others_idle)
                if found is not None:
                    return epoch, *found
            is_held = self._in_step and self._at[worker] not in self._over
            if is_held or self._at[worker] + 1 >= self._epochs:
                return None
            self._at[worker] += 1

    def _find_in(
        self, one: _Epoch, worker: int, *, others_idle: bool
    ) -> tuple[int, int | None] | None:
        if one.own.get(worker):
            return worker, None
        for place, (owner, _, late) in enumerate(one.free):
            if late != worker or not others_idle:
                return owner, place
        if self._shared and any(one.own.values()):
            return max(one.own, key=lambda owner: len(one.own[owner])), None
        return None

    def _enter(self, epoch: int) -> None:
        """Opens an epoch for everybody when the first one comes to it."""
        if epoch in self._open or epoch in self._over:
            return
        left = {
            owner: deque(i for i in range(len(cut)) if (epoch, owner, i) not in self._applied)
            for owner, cut in enumerate(self._cuts)
        }
        unapplied = sum(len(indices) for indices in left.values())
        free = deque((owner, i, None) for owner in sorted(self._lost) for i in left.pop(owner))
        self._open[epoch] = _Epoch(own=left, free=deque(free), unapplied=unapplied)


def _cut(
    part: Indices, batch_size: int, per_push: int | None
) -> list[tuple[int, tuple[Indices, ...]]]:
    """A worker's rows as batches, and these as portions with the number of their first batch."""
    batches = [part[start : start + batch_size] for start in range(0, len(part), batch_size)]
    size = per_push or max(1, len(batches))
    return [(start, tuple(batches[start : start + size])) for start in range(0, len(batches), size)]
