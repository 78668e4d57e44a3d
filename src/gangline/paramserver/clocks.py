# SPDX-License-Identifier: Apache-2.0
"""Who may go on, and what becomes of an update: the clocks of a parameter server's workers.

    clocks = Clocks(parse_consistency("ssp(2)"), workers=range(4))
    if clocks.may_begin(0):
        clock = clocks.begin(0)          # worker 0 reads the parameters
    arrival = clocks.arrive(0, clock)    # its update came: arrival.fate says what to do with it

A worker's clock is the number of updates that it has pushed. It begins clock c by reading the
parameters, and ends it by pushing one update. The definitions:

- `ssp(s)`: c is begun while the slowest worker's clock is at least c - s. So whoever begins c reads a
  model that has everybody's updates of the clocks before c - s.
- `bsp`: that of `ssp(0)`, and the updates of a clock (a round) are applied together, when all are
  there.
- `backup(b)`: of the n workers of a round the first n - b updates are applied together. One that comes
  later is dropped, and its worker goes on with the round of that moment.
- `asp`: nobody waits.

Pure: no time, no thread, no tensors. Whoever holds the parameters asks, and does as told.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.spec.consistency import ASP, Consistency
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Named(StrEnum):
    """Pickled by its class and value alone, as records of a coordinator's state must be."""

    def __reduce_ex__(self, protocol: Any) -> tuple[type[_Named], tuple[str]]:
        return type(self), (self.value,)


class Fate(_Named):
    """What becomes of an update that arrives."""

    APPLIED = "applied"
    """At once."""
    HELD = "held"
    """Until its round closes; where this update closes it, `Arrival.closed` says so."""
    LATE = "late"
    """Dropped: its round closed without it, and its samples are unused."""
    DUPLICATE = "duplicate"
    """It came before, and counts once: `Arrival.before` says what became of it then."""
    GONE = "gone"
    """Dropped: its worker has left, or was given up, and others have its samples."""


class Closed(msgspec.Struct, frozen=True):
    """A round whose updates are to be applied now, together."""

    round: int
    workers: tuple[int, ...]
    """Whose updates, in the order in which they came."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one update."""

    fate: Fate
    staleness: int = 0
    """Updates that were applied since the parameters were read that this one was computed from."""
    closed: Closed | None = None
    late_by: int = 0
    """Of a late one: how many rounds have closed since it was begun."""
    before: Fate | None = None
    """Of a duplicate: what became of it when it first came, if it is the last one of its worker."""


class Standing(_Named):
    """Whether others wait for a worker."""

    ACTIVE = "active"
    FINISHED = "finished"
    LEFT = "left"


class _Worker(msgspec.Struct):
    worker: int
    clock: int
    standing: Standing = Standing.ACTIVE
    begun: bool = False
    read_at: int = 0
    last: Fate | None = None
    last_clock: int = -1

    def end_clock(self, fate: Fate, *, at_least: int = 0) -> None:
        self.last, self.last_clock = fate, self.clock
        self.clock, self.begun = max(self.clock + 1, at_least), False


class _State(msgspec.Struct):
    mode: Consistency
    workers: list[_Worker]
    floor: int = 0
    applied: int = 0
    held: list[int] = msgspec.field(default_factory=list)


class Clocks:
    """The clocks of all workers, and what follows from them. One thread at a time."""

    def __init__(self, mode: Consistency, workers: Iterable[int]) -> None:
        names = list(workers)
        mode.check(len(names))
        self._mode = mode
        self._workers: dict[int, _Worker] = {}
        self._floor = 0  # the clock of the slowest; with rounds, the number of the present one
        self._applied = 0
        self._held: list[int] = []
        for name in names:
            self.join(name)

    @property
    def mode(self) -> Consistency:
        """What the workers are held together by."""
        return self._mode

    @property
    def applied(self) -> int:
        """How many updates were applied."""
        return self._applied

    @property
    def floor(self) -> int:
        """The clock that nobody is behind; with rounds, the number of the present one."""
        return self._floor

    @property
    def active(self) -> tuple[int, ...]:
        """The workers that others wait for."""
        return tuple(one.worker for one in self._workers.values() if _is_active(one))

    @property
    def known(self) -> tuple[int, ...]:
        """All workers that have joined and have not left."""
        return tuple(
            one.worker for one in self._workers.values() if one.standing is not Standing.LEFT
        )

    def clock(self, worker: int) -> int:
        """The clock that a worker is in; one that joined late counts from where the others were."""
        return self._known(worker).clock

    def slowest(self) -> tuple[int, ...]:
        """Whom the others wait for, or would: the active workers whose clock is the lowest."""
        clocks = {name: self._workers[name].clock for name in self.active}
        return tuple(name for name, clock in clocks.items() if clock == min(clocks.values()))

    def may_begin(self, worker: int) -> bool:
        """Whether a worker may read the parameters and compute its next update."""
        one = self._known(worker)
        if not _is_active(one):
            return False
        if self._mode.kind == ASP or one.begun:  # who asks again has not heard the answer
            return True
        return one.clock - self._floor <= self._mode.staleness

    def begin(self, worker: int) -> int:
        """A worker reads the parameters now: the clock that its update will be for."""
        if not self.may_begin(worker):
            raise UsageError(
                f"worker {worker} may not begin clock {self.clock(worker)} in {self._mode}: the "
                f"slowest is at {self._floor}; ask may_begin first"
            )
        one = self._known(worker)
        if self._mode.has_rounds:
            one.clock = max(one.clock, self._floor)
        one.begun, one.read_at = True, self._applied
        return one.clock

    def arrive(self, worker: int, clock: int) -> Arrival:
        """An update has come. What is not applied or held must not change the parameters."""
        one = self._known(worker)
        if clock < one.clock:
            before = one.last if clock == one.last_clock else None
            return Arrival(fate=Fate.DUPLICATE, before=before)
        if one.standing is Standing.LEFT:
            return Arrival(fate=Fate.GONE)
        if clock > one.clock or not one.begun:
            raise UsageError(
                f"worker {worker} sent an update for clock {clock}, but it has "
                f"{'begun' if one.begun else 'not begun'} clock {one.clock}; begin comes first"
            )
        if self._mode.has_rounds:
            return self._arrive_in_round(one)
        staleness = self._applied - one.read_at
        one.end_clock(Fate.APPLIED)
        self._applied += 1
        self._raise_floor()
        return Arrival(fate=Fate.APPLIED, staleness=staleness)

    def join(self, worker: int) -> None:
        """A new worker, which begins where the slowest one is."""
        if worker in self._workers:
            raise UsageError(
                f"worker {worker} was here before: updates of its first life could be taken for "
                f"new ones; give who comes back a number of its own"
            )
        self._workers[worker] = _Worker(worker=worker, clock=self._floor, read_at=self._applied)

    def leave(self, worker: int, *, is_void: bool = False) -> Closed | None:
        """A worker is gone, or given up: nobody waits for it, and what it may still send is refused.

        What it has pushed in the present round still counts, unless it `is_void`.
        """
        if is_void:
            self._held = [one for one in self._held if one != worker]
        return self._stand_aside(worker, Standing.LEFT)

    def finish(self, worker: int) -> Closed | None:
        """A worker has nothing more to push for now: nobody waits for it until it resumes."""
        if self._known(worker).standing is Standing.LEFT:
            raise UsageError(f"worker {worker} has left, and cannot finish")
        return self._stand_aside(worker, Standing.FINISHED)

    def resume(self, worker: int) -> None:
        """A worker that had finished has something to do again; it is not behind the others."""
        one = self._known(worker)
        if one.standing is Standing.LEFT:
            raise UsageError(f"worker {worker} has left; let it join under a number of its own")
        if not _is_active(one):
            one.standing, one.clock = Standing.ACTIVE, max(one.clock, self._floor)

    def recall(self, worker: int, clock: int, fate: Fate) -> None:
        """What was once written down: this became of a worker's update. In the order of the updates."""
        if worker not in self._workers:
            self.join(worker)
        one = self._workers[worker]
        one.clock = max(one.clock, clock)
        one.end_clock(fate)
        if fate is Fate.LATE:
            return
        self._applied += 1
        if self._mode.has_rounds:
            self._floor = max(self._floor, clock + 1)
        else:
            self._raise_floor()

    def void_round(self) -> tuple[int, ...]:
        """What was pushed in the present round is lost: those workers push again. Who they are."""
        voided, self._held = tuple(self._held), []
        for name in voided:
            one = self._workers[name]
            one.clock, one.last, one.last_clock = self._floor, None, -1
        return voided

    def take_up(self, worker: int, clock: int) -> None:
        """A worker may have begun this clock before these clocks were recalled: then it goes on."""
        one = self._known(worker)
        if not one.begun and clock >= one.clock:
            one.clock, one.begun = clock, True

    def export(self) -> dict[str, Any]:
        """Everything as plain data, for a checkpoint or a replica."""
        workers = list(self._workers.values())
        state = _State(self._mode, workers, self._floor, self._applied, self._held)
        exported: dict[str, Any] = msgspec.to_builtins(state)
        return exported

    @classmethod
    def restore(cls, exported: dict[str, Any]) -> Clocks:
        """The clocks that `export` was called of."""
        try:
            state = msgspec.convert(exported, _State)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"these are no clocks: {error}; give what Clocks.export returned"
            ) from error
        found = cls.__new__(cls)
        found._mode, found._floor, found._applied = state.mode, state.floor, state.applied
        found._workers = {one.worker: one for one in state.workers}
        found._held = state.held
        return found

    def _known(self, worker: int) -> _Worker:
        if worker not in self._workers:
            raise UsageError(
                f"worker {worker} has not joined; there are {sorted(self._workers) or 'none'}"
            )
        return self._workers[worker]

    def _arrive_in_round(self, one: _Worker) -> Arrival:
        if one.clock < self._floor:
            late_by = self._floor - one.clock
            one.end_clock(Fate.LATE, at_least=self._floor)
            staleness = self._applied - one.read_at
            return Arrival(fate=Fate.LATE, staleness=staleness, late_by=late_by)
        one.end_clock(Fate.HELD)
        self._held.append(one.worker)
        return Arrival(fate=Fate.HELD, closed=self._close_round())

    def _stand_aside(self, worker: int, standing: Standing) -> Closed | None:
        one = self._known(worker)
        one.standing, one.begun = standing, False
        if self._mode.has_rounds:
            return self._close_round()
        self._raise_floor()
        return None

    def _close_round(self) -> Closed | None:
        """The present round, if it has what it needs. Who has left counts if its update had come."""
        number = len({*self.active, *self._held})
        if not self._held or len(self._held) < max(1, number - self._mode.backups):
            return None
        closed = Closed(self._floor, tuple(self._held))
        self._applied += len(self._held)
        self._floor += 1
        self._held = []
        return closed

    def _raise_floor(self) -> None:
        """The slowest one's clock. Where nobody is active, who resumes begins beside the furthest."""
        clocks = [one.clock for one in self._workers.values() if _is_active(one)]
        furthest = max(one.clock for one in self._workers.values())
        self._floor = max(self._floor, min(clocks, default=furthest))


def _is_active(one: _Worker) -> bool:
    return one.standing is Standing.ACTIVE
