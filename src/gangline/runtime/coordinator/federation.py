# SPDX-License-Identifier: Apache-2.0
"""What the server asks: one hub, or one per team where groups train at their own pace.

The founders of a job always meet in one hub, so that all begin alike. If they are to train apart, each
group becomes a team with a hub of its own, which keeps its members together as that of a whole job
would; what concerns all teams is in `Teams`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from gangline.control.parts import divide
from gangline.planning.relaxing import choose_sync, groups_by_place
from gangline.runtime.coordinator.hub import LEFT_BEHIND, Hub, Outgoing
from gangline.runtime.coordinator.journal import Ended, NoJournal, TeamFounded
from gangline.runtime.coordinator.status import ReplanRequest, Status
from gangline.runtime.coordinator.team import TeamFactory
from gangline.runtime.coordinator.teams import Teams
from gangline.runtime.messages import FromTeam, FromWorker, Goodbye, Hello, Measured, Ready, Refused
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision
from gangline.spec.structure import Structure, fit
from gangline.spec.sync import AUTO
from gangline.spec.view import View, Whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.control.detection import Detector
    from gangline.eventlog import EventSink
    from gangline.runtime.coordinator.journal import Journal
    from gangline.runtime.coordinator.replanning import Planning
    from gangline.runtime.coordinator.team import Team
    from gangline.spec.sync import Sync


class Federation:
    """The coordinator as its server sees it."""

    def __init__(
        self,
        *,
        run: str,
        expected_workers: int,
        events: EventSink,
        clock: Callable[[], float] = time.time,
        reserved: int = 0,
        journal: Journal | None = None,
        planning: Planning | None = None,
        detector: Detector | None = None,
    ) -> None:
        """Goes on where the journal ends. Workers bring the numbers below `reserved` themselves."""
        self._run = run
        self._events = events
        self._clock = clock
        self._journal = journal or NoJournal()
        self._root = Hub(
            run=run,
            expected_workers=expected_workers,
            events=events,
            clock=clock,
            reserved=reserved,
            journal=self._journal,
            planning=planning,
            detector=detector,
        )
        self._factory = TeamFactory(run, events, clock, self._journal, detector)
        self._teams: Teams | None = None
        self._profile = None if planning is None else planning.profile
        self._has_chosen = False
        self._ready: dict[int, Ready] = {}
        self._resume()

    # --- what the server asks --------------------------------------------------------------------

    def connect(self, hello: Hello) -> tuple[int, list[Outgoing]]:
        """A worker said hello: its number, and what to tell whom. Raises UsageError for it to read."""
        if self._teams is None:
            return self._root.connect(hello)
        known = self._teams.team_of(hello.worker)
        worker = hello.worker if known is not None else self._root.admit(hello)
        if not self._teams.active and worker in self._ready:
            return worker, [Outgoing(worker, LEFT_BEHIND)]
        team = known or self._team_for(hello.replaces)
        self._teams.hear(worker)
        _, outgoing = team.hub.connect(msgspec.structs.replace(hello, worker=worker))
        return worker, outgoing + self._teams.catch_up(worker)

    def disconnect(self, worker: int) -> None:
        """A worker's connection is gone; the worker itself may be well."""
        self._hub_of(worker).disconnect(worker)

    def expect_without(self, worker: int) -> list[Outgoing]:
        """Whoever starts the workers says that one has ended: the founders do not wait for it."""
        return self._root.expect_without(worker) if self._teams is None else []

    def tick(self) -> list[Outgoing]:
        """Time has passed: looks whether somebody is missing, and grants what was asked for."""
        if self._teams is None:
            return self._root.tick()
        outgoing: list[Outgoing] = []
        for team in list(self._teams.teams.values()):
            outgoing += self._with_changes(team, team.hub.tick)
        return outgoing + self._teams.tick()

    def receive(self, worker: int, message: FromWorker) -> list[Outgoing]:
        """A worker said something after its hello."""
        if isinstance(message, Ready):
            message = self._resolved(message)
        if self._teams is None:
            return self._root.receive(worker, message) + self._found_teams()
        self._teams.hear(worker)
        team = self._teams.team_of(worker)
        if team is None:
            return self._adopt(worker)
        if isinstance(message, FromTeam):
            return self._teams.receive(team, message)
        outgoing = self._with_changes(team, lambda: team.hub.receive(worker, message))
        if isinstance(message, Measured):
            outgoing += self._teams.note(message)
        if isinstance(message, Goodbye) and not self._teams.active:
            self._journal.append(Ended())
        return outgoing

    def ask_to_leave(self, worker: int) -> list[Outgoing]:
        """Somebody wants a worker to go. Raises UsageError where it cannot."""
        return self._hub_of(worker).ask_to_leave(worker)

    def ask_structure(self, request: ReplanRequest) -> list[Outgoing]:
        """Somebody wants another structure. Raises UsageError where there can be none."""
        if self._teams is not None:
            raise UsageError(
                "this job's groups train at their own pace: its structure stays as it is while it runs"
            )
        return self._root.ask_structure(request)

    def set_sync(self, sync: Sync) -> list[Outgoing]:
        """Holds groups together in another way. Raises UsageError where that cannot be changed."""
        if self._teams is None or not sync.is_relaxed:
            raise UsageError(
                f"this job cannot be switched to {sync} while it runs: a job that was started with "
                "full stays full, and one whose groups train apart can be switched between none, "
                "percentage, local and flexible; start it with --sync"
            )
        return self._teams.set_sync(sync)

    def status(self) -> Status:
        """A snapshot for people."""
        if self._teams is None:
            return self._root.status()
        parts = [team.hub.status() for team in self._teams.teams.values()]
        views = [part.view for part in parts if part.view is not None]
        if not views:
            return self._root.status()
        view = View(
            number=max(one.number for one in views),
            members=tuple(member for one in views for member in one.members),
            shares=tuple(share for one in views for share in one.shares),
            reason=f"{len(views)} teams, held together by {self._teams.sync}",
        )
        return Status(
            run=self._run,
            expected_workers=parts[0].expected_workers,
            workers=sorted(
                (worker for part in parts for worker in part.workers), key=lambda one: one.worker
            ),
            view=view,
            step=max(part.step for part in parts),
            decisions=[reason for part in parts for reason in part.decisions][-20:],
        )

    # --- teams -----------------------------------------------------------------------------------

    def _hub_of(self, worker: int) -> Hub:
        team = None if self._teams is None else self._teams.team_of(worker)
        return self._root if team is None else team.hub

    def _with_changes(self, team: Team, act: Callable[[], list[Outgoing]]) -> list[Outgoing]:
        """What a team's hub does, and what follows for the others where its members changed."""
        assert self._teams is not None
        before = team.members
        outgoing = act()
        if team.hub.take_lower_rate():
            self._teams.lower_rate()
        if team.members == before:
            return outgoing
        return outgoing + self._teams.note_group(team)

    def _resolved(self, ready: Ready) -> Ready:
        """What a worker is ready for, where it was left to what is known of the links."""
        profile = self._profile
        if ready.sync.kind == AUTO:
            levels = ready.sync.levels
            choice = choose_sync(profile, ready.gradient_bytes, levels=levels)
            ready = msgspec.structs.replace(ready, sync=choice.sync)
            if not self._has_chosen:
                self._has_chosen = True
                numbers = {"exchange_s": choice.exchange_s}
                self._events.write(
                    Decision(
                        t=self._clock(), what="choose_sync", reason=choice.reason, numbers=numbers
                    )
                )
        if ready.sync.is_relaxed and ready.structure is None and profile is not None:
            ready = msgspec.structs.replace(ready, structure=groups_by_place(profile))
        return ready

    def _found_teams(self) -> list[Outgoing]:
        """All founders are ready, and are to train apart."""
        ready = self._root.founding
        if ready is None:
            return []
        first = next(iter(ready.values()))
        groups = team_groups(first.structure, tuple(ready), levels=first.sync.levels)
        try:
            parts = divide(
                first.global_batch,
                {i: _speed(group.workers, first, tuple(ready)) for i, group in enumerate(groups)},
                {i: max(1, first.minimum) * len(group.workers) for i, group in enumerate(groups)},
            )
        except UsageError as error:
            return [Outgoing(worker, Refused(reason=str(error))) for worker in ready]
        self._ready = ready
        self._teams = self._make_teams(first)
        outgoing: list[Outgoing] = []
        first_rank = first_sample = 0
        for number, group in enumerate(groups):
            whole = Whole(
                team=number,
                first_rank=first_rank,
                workers=len(ready),
                first_sample=first_sample,
                samples=first.global_batch,
            )
            first_rank += len(group.workers)
            first_sample += parts[number]
            record = TeamFounded(team=number, members=group.workers, whole=whole, sync=first.sync)
            team, told = self._factory.found(
                record,
                ready=ready,
                hellos=self._root.hellos,
                batch=parts[number],
                structure=None if group.is_flat else group,
            )
            self._teams.teams[number] = team
            outgoing += told
        return outgoing

    def _make_teams(self, first: Ready) -> Teams:
        return Teams(
            first.sync,
            global_batch=first.global_batch,
            events=self._events,
            journal=self._journal,
            clock=self._clock,
            hellos=self._root.hellos,
            compression="none" if first.structure is None else first.structure.compression,
        )

    def _team_for(self, replaces: int) -> Team:
        """The team that a newcomer enters: of whom it replaces, or the smallest."""
        assert self._teams is not None
        known = self._teams.team_of(replaces)
        if known is not None and known in self._teams.active:
            return known
        active = self._teams.active
        if not active:
            raise UsageError("the job is over, its workers have ended")
        return min(active, key=lambda team: (len(team.members), team.number))

    def _adopt(self, worker: int) -> list[Outgoing]:
        """A worker is back whose team was given up: it enters another one, and copies its state."""
        assert self._teams is not None
        hello, ready = self._root.hellos.get(worker), self._root.readied(worker)
        if hello is None or ready is None:
            return []
        if not self._teams.active:
            return [Outgoing(worker, LEFT_BEHIND)]
        team = self._team_for(-1)
        _, outgoing = team.hub.connect(msgspec.structs.replace(hello, worker=worker))
        outgoing += team.hub.receive(worker, msgspec.structs.replace(ready, attempt=0))
        return outgoing + self._teams.catch_up(worker)

    def _resume(self) -> None:
        """Goes on where the coordinator of before was killed; its workers will come back."""
        founded = [one for one in self._journal.records if isinstance(one, TeamFounded)]
        if not founded:
            return
        ready = self._root.readied(founded[0].members[0])
        assert ready is not None
        self._teams = self._make_teams(ready)
        for record in founded:
            team = self._factory.resume(record, minimum=ready.minimum)
            if team is not None:
                self._teams.teams[record.team] = team
        self._teams.replay(self._journal.records)


def team_groups(
    structure: Structure | None, workers: tuple[int, ...], *, levels: int
) -> list[Structure]:
    """The groups that train apart: of `levels` levels, counted from the leaves; else single workers."""
    if structure is None or structure.members:
        return [Structure.flat((worker,)) for worker in workers]
    return _cut_at(fit(structure, workers), levels)


def _cut_at(group: Structure, levels: int) -> list[Structure]:
    if group.num_levels <= levels:
        return [group]
    return [part for below in group.groups for part in _cut_at(below, levels)]


def _speed(members: tuple[int, ...], first: Ready, founders: tuple[int, ...]) -> float:
    """A group's part of the whole before anything is measured."""
    if first.shares is None:
        return float(len(members))
    known = dict(zip(founders, first.shares, strict=False))
    return sum(known.get(member, 1.0) for member in members)
