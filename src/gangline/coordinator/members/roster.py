# SPDX-License-Identifier: Apache-2.0
"""Everybody who ever said hello to a coordinator: who they are, and what they are ready for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.control import ControlOptions
from gangline.control.shares.pulling import base_allocation, parse_pulling
from gangline.coordinator.kept.records import Founded, Greeted, Lowered, Readied
from gangline.coordinator.members.greeting import check_elastic, check_hello, number_of
from gangline.coordinator.members.table import WorkerTable
from gangline.protocol.messages import Gathered
from gangline.protocol.status import WorkerStatus
from gangline.spec.errors import UsageError
from gangline.spec.sync import AUTO

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.coordinator.kept.memory import Memory
    from gangline.coordinator.kept.records import Journal
    from gangline.coordinator.settings import Settings
    from gangline.protocol.messages import Hello, Ready
    from gangline.spec.exchange.address import WireAddress
    from gangline.spec.view import View, Whole


class Roster:
    """The workers of a job by number, and those that found it."""

    def __init__(
        self, memory: Memory, journal: Journal, settings: Settings, *, whole: Whole | None = None
    ) -> None:
        """Who is in the journal is known, but not here yet."""
        self._journal = journal
        self._reserved = settings.reserved
        self._detector = settings.detector
        self._defaults = settings.defaults
        self._may_exclude = settings.may_exclude
        self.expected = settings.expected_workers
        """How many found the job."""
        self.founded: Founded | None = memory.founded
        """Who found the job; None until all of them have come."""
        # Who had come before all founders were there comes again, as a stranger.
        has_begun = memory.founded is not None
        self.hellos: dict[int, Hello] = memory.hellos if has_begun else {}
        self.ready: dict[int, Ready] = memory.ready if has_begun else {}
        self.workers = WorkerTable(
            {worker: _status(worker, hello) for worker, hello in self.hellos.items()}
        )
        self._lowered: dict[int, int] = memory.lowered
        self.ended: set[int] = set()
        """Whose process has ended, as whoever started it says: it will not come back."""
        self.whole = whole
        """What these workers are a part of, where they are one team of several."""
        self._rigid: set[int] = set()
        """Who cannot see others come and go."""
        for worker, hello in self.hellos.items():
            self._note_elastic(worker, hello)
        self._founders: frozenset[int] = frozenset()
        self._awaited: set[int] = set()
        """The founders that are not ready, in their present attempt."""
        self._await_founders()

    # --- coming and going ------------------------------------------------------------------------

    def check(self, hello: Hello, *, run: str, members: Iterable[int]) -> None:
        """Raises UsageError, for the worker to read, if it does not belong into this job."""
        check_hello(hello, run=run, known=self.workers.get(hello.worker))
        is_known = self.is_founder(hello.worker) or hello.worker in members
        if self.founded is not None and not is_known:
            self.check_elastic(members, what="join")

    def check_elastic(self, members: Iterable[int], *, what: str) -> None:
        """Raises UsageError if one of the members cannot see others come and go."""
        check_elastic([self.hellos[member] for member in members], what=what)

    def is_elastic(self, members: Iterable[int]) -> bool:
        """Whether all of them can see others come and go."""
        return self._rigid.isdisjoint(members) if self._rigid else True

    def greet(self, hello: Hello) -> tuple[int, bool]:
        """The number of who said hello, and whether it is another process than had it before."""
        worker = number_of(hello, hellos=self.hellos, reserved=self._reserved)
        known = self.workers.get(worker)
        is_new = known is None or known.pid != hello.pid
        if self.hellos.get(worker) != hello:
            self._journal.append(Greeted(worker=worker, hello=hello))
        self.hellos[worker] = hello
        self._note_elastic(worker, hello)
        if known is None or is_new:
            self.workers[worker] = known = _status(worker, hello)
            self.ended.discard(worker)
        known.is_connected = True
        if hello.replaces in self._lowered:
            self._lowered.setdefault(worker, self._lowered[hello.replaces])
        return worker, is_new

    def _note_elastic(self, worker: int, hello: Hello) -> None:
        if hello.is_elastic:
            self._rigid.discard(worker)
        else:
            self._rigid.add(worker)

    def lose_connection(self, worker: int) -> None:
        """The line is down; whoever is not there when the job begins is no founder."""
        if worker in self.workers:
            self.workers[worker].is_connected = False
        if self.founded is None:
            self.hellos.pop(worker, None)

    def newcomers(self, members: Iterable[int], dismissed: Iterable[int]) -> list[int]:
        """Who has come to take part, and does not yet."""
        away = {*members, *dismissed}
        return [
            one.worker
            for one in self.workers.values()
            if one.is_connected and one.state in ("connected", "ready") and one.worker not in away
        ]

    def set_ready(self, worker: int, ready: Ready) -> None:
        """A worker has prepared its model. Raises UsageError where it is not the founders' model."""
        self.check_alike(worker, ready)
        if self.ready.get(worker) != ready:
            self._journal.append(Readied(worker=worker, ready=ready))
        self.ready[worker] = ready
        self._await_founder(worker)

    def check_alike(self, worker: int, ready: Ready) -> None:
        """Raises UsageError where a newcomer does not train what the founders do.

        These compare each other when they shake hands; but who comes later must not be let in to
        do so, because the members could only end when they find that one of them differs.
        """
        first = None if self.founded is None else self.ready.get(self.founded.members[0])
        if self.founded is None or first is None or worker in self._founders:
            return
        for name, expected in first.traits.items():
            found = ready.traits.get(name, expected)
            if found != expected:
                raise UsageError(
                    f"worker {worker} differs from the members in {name.replace('_', ' ')}: {found} "
                    f"instead of {expected}. Start it with the script, arguments and data of the job"
                )

    def is_founder(self, worker: int) -> bool:
        """Whether a worker is one of the founders that are left."""
        founded = self.founded
        return founded is not None and worker in self._founders and worker not in founded.lost

    # --- founding --------------------------------------------------------------------------------

    def found(self) -> bool:
        """Founds the job if all founders have come just now."""
        if self.founded is not None or len(self.hellos) < self.expected:
            return False
        come = [one for one in self.hellos if not self._reserved or one < self._reserved]
        if not come or len(come) < self.expected:
            return False
        self._set(Founded(founders=tuple(sorted(come))))
        return True

    def found_again(self, lost: tuple[int, ...]) -> None:
        """Lets the founders meet again, without those that were lost meanwhile."""
        old = self.founded
        assert old is not None
        self._set(Founded(founders=old.founders, lost=(*old.lost, *lost), attempt=old.attempt + 1))

    def _set(self, founded: Founded) -> None:
        self._journal.append(founded)
        self.founded = founded
        self._await_founders()

    def _await_founders(self) -> None:
        """Of whom it is not known that they are ready; kept, because there may be thousands."""
        founded = self.founded
        self._founders = frozenset() if founded is None else frozenset(founded.founders)
        self._awaited = set() if founded is None else {*founded.members}
        for worker in tuple(self._awaited):
            self._await_founder(worker)

    def _await_founder(self, worker: int) -> None:
        founded, ready = self.founded, self.ready.get(worker)
        if founded is None or not self.is_founder(worker):
            return
        if ready is not None and ready.attempt == founded.attempt:
            self._awaited.discard(worker)
        else:
            self._awaited.add(worker)

    @property
    def can_begin(self) -> bool:
        """Whether all founders are ready, in their present attempt."""
        return self.founded is not None and not self._awaited

    def gather(self) -> list[Gathered]:
        """What everybody is told when the founders are there."""
        assert self.founded is not None
        members, addresses = self.founded.members, self.addresses(self.founded.members)
        founders = {*members}
        return [
            Gathered(
                worker=worker, members=members, addresses=addresses, attempt=self.founded.attempt
            )
            if worker in founders
            else self.gathered(worker, None)
            for worker in sorted(self.hellos)
        ]

    def gathered(self, worker: int, view: View | None) -> Gathered:
        """What a worker is told of who takes part."""
        founded = self.founded
        assert founded is not None
        members = founded.members if view is None else view.members
        is_founder = view is None and worker in members
        return Gathered(
            worker=worker,
            members=members if is_founder else tuple(m for m in members if m != worker),
            addresses=self.addresses(members) if is_founder else (),
            attempt=founded.attempt,
        )

    def addresses(self, members: Iterable[int]) -> tuple[WireAddress, ...]:
        """Where workers are reached by their peers."""
        return tuple(self.hellos[member].address for member in members)

    @property
    def is_relaxed(self) -> bool:
        """Whether the founders are to be made teams, which they are not yet."""
        founded = self.founded
        if founded is None or self.whole is not None:
            return False
        first = self.ready.get(founded.members[0])
        return first is not None and first.sync.is_relaxed

    @property
    def pulled(self) -> str:
        """The allocation by which parts of a global batch are pulled; empty: each has a share."""
        assert self.founded is not None
        first = self.ready[self.founded.members[0]]
        is_pulled = first.shares is None and parse_pulling(first.allocation) is not None
        return first.allocation if is_pulled else ""

    @property
    def options(self) -> ControlOptions:
        """What the run was asked for, from what its first founder was."""
        assert self.founded is not None
        first = self.ready[self.founded.members[0]]
        given = self._defaults or ControlOptions(global_batch=first.global_batch)
        return msgspec.structs.replace(
            given,
            global_batch=first.global_batch,
            allocation=base_allocation(first.allocation) if first.shares is None else "fixed",
            minimum=first.minimum,
            seed=first.seed,
            structure=first.structure,
            whole=self.whole,
            has_owner=self.whole is not None and first.owns is not None,
            detector=self._detector,
            may_part=self.whole is None and not first.must_stay and first.sync.kind != AUTO,
            may_exclude=given.may_exclude
            and self._may_exclude
            and self.is_elastic(self.founded.members),
        )

    def speeds(self, members: tuple[int, ...]) -> tuple[float, ...] | None:
        """How fast members were said to be when the job was founded; None: nobody said."""
        founded = self.founded
        assert founded is not None
        shares = self.ready[founded.members[0]].shares
        if shares is None:
            weights = tuple(self.ready[member].weight for member in members)
            return weights if all(weights) else None
        known = dict(zip(founded.founders, shares, strict=False))
        return tuple(known.get(member, 1.0) for member in members)

    def ceilings(self, members: Iterable[int]) -> tuple[int, ...]:
        """The most samples that each of them can hold."""
        return tuple(self._ceiling(member) for member in members)

    def lower_ceiling(self, worker: int, max_samples: int) -> None:
        """A worker ran out of memory: who takes its place gets no more than this."""
        self._journal.append(Lowered(worker=worker, max_samples=max_samples))
        self._lowered[worker] = max_samples

    def _ceiling(self, worker: int) -> int:
        ready = self.ready[worker]
        asked = ready.global_batch if ready.max_samples is None else ready.max_samples
        return min(asked, self._lowered.get(worker, asked))

    def has_trained(self, worker: int) -> bool:
        """Whether a worker has ever reported a step."""
        status = self.workers.get(worker)
        return status is not None and status.step >= 0


def _status(worker: int, hello: Hello) -> WorkerStatus:
    return WorkerStatus(
        worker=worker, host=hello.host, pid=hello.pid, is_connected=False, state="connected"
    )
