# SPDX-License-Identifier: Apache-2.0
"""Which workers make a team, and the founding of teams: at first, and again while they train."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.control.shares.parts import divide, least_parts, least_share
from gangline.control.sync.placing import check_rooms
from gangline.coordinator.kept.records import TeamFounded, TeamsFounded
from gangline.coordinator.serving.rooms import room_of
from gangline.coordinator.teams.team import Team
from gangline.planning.structure.relaxing import groups_by_place
from gangline.spec.errors import UsageError
from gangline.spec.exchange.structure import Structure, fit
from gangline.spec.sync import IN_STEP
from gangline.spec.view import Whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gangline.coordinator.hub import Hub
    from gangline.coordinator.kept.records import AnyRecord, Journal
    from gangline.coordinator.outgoing import Outgoing
    from gangline.coordinator.teams.team import TeamFactory
    from gangline.protocol.messages import Hello, Ready
    from gangline.spec.profile import ClusterProfile
    from gangline.spec.sync import Sync


class Bystander(NamedTuple):
    """A worker that is connected, and in no team: it is about to enter one, or was put out."""

    worker: int
    hello: Hello
    ready: Ready | None


class ScopePlan(NamedTuple):
    """Teams that are merged with each other at one level."""

    level: int
    teams: tuple[int, ...]
    compression: str


class Resumed(NamedTuple):
    """What the journal knows of teams."""

    ready: Ready
    """The first founder's."""
    sync: Sync
    teams: dict[int, Team]
    scopes: list[ScopePlan]


class Founder:
    """Makes workers teams; all of them have met in the hub of the whole job, the root."""

    def __init__(
        self, root: Hub, factory: TeamFactory, journal: Journal, profile: ClusterProfile | None
    ) -> None:
        self._root = root
        self._factory = factory
        self._journal = journal
        self._profile = profile
        self._next = 0
        self._first: Ready | None = None
        self._weights: dict[int, float] | None = None
        """The shares that were asked for, by founder; None: the allocation's."""
        self.structure: Structure | None = None
        """The groups, of whatever depth, that teams are made of."""

    def begin(self, ready: Mapping[int, Ready], structure: Structure | None) -> Ready:
        """Remembers what the founders of the job are ready for; returns the first one's."""
        self._first = first = next(iter(ready.values()))
        if first.shares is not None:
            self._weights = dict(zip(self._root.mind.founders, first.shares, strict=False))
        self.structure = structure
        return first

    def structure_of_root(self, asked: Structure | None) -> Structure | None:
        """The groups of a job that is one: as it exchanges, as it was asked for, or by places."""
        view = self._root.mind.view
        planned = None if view is None else view.structure
        if planned is not None and planned.groups:
            return planned
        if asked is not None or self._profile is None:
            return asked
        return groups_by_place(self._profile)

    def groups(self, sync: Sync, workers: tuple[int, ...]) -> list[Structure]:
        """Which workers are a team, where they are held together like this."""
        if self.is_owned:
            return [Structure.flat((worker,)) for worker in workers]
        if sync.is_relaxed:
            return team_groups(self.structure, workers, levels=sync.levels)
        if self.structure is None or not self.structure.groups:
            return [Structure.flat(workers)]
        return [fit(self.structure, workers)]

    @property
    def is_owned(self) -> bool:
        """Whether each worker has its own data, so that it can be in no team with others."""
        return self._first is not None and self._first.owns is not None

    def check_levels(self, sync: Sync) -> None:
        """Raises UsageError where the workers cannot be held together like this."""
        if self.is_owned and (not sync.is_relaxed or sync.levels > 1 or sync.within):
            raise UsageError(
                f"sync {str(sync)!r} has several workers in a group, and with data='worker' each is "
                "one of its own, with its own samples: choose bsp, which makes the updates that full "
                "would make, asp, ssp(4), backup(1), local(16), percentage(0.25), flexible or none"
            )
        wanted = sync.levels + len(sync.rates)
        found = 1 if self.structure is None else self.structure.num_levels
        if sync.within and found < wanted:
            raise UsageError(
                f"sync {str(sync)!r} holds {wanted} levels together, and the structure has {found}: "
                "give a structure of groups of groups (--structure FILE)"
            )

    def scopes(self, sync: Sync, members: Mapping[int, tuple[int, ...]]) -> list[ScopePlan]:
        """Which teams, of these members, are merged with each other at which level."""
        plans = [ScopePlan(len(sync.within), tuple(members), self._compression)]
        structure = self.structure
        if structure is None:
            return plans
        workers = tuple(worker for group in members.values() for worker in group)
        for level in range(len(sync.within)):
            for group in _cut_at(fit(structure, workers), sync.levels + 1 + level):
                inside = set(group.workers)
                teams = tuple(number for number, own in members.items() if inside & set(own))
                plans.append(ScopePlan(level, teams, group.compression))
        return plans

    @property
    def _compression(self) -> str:
        return "none" if self.structure is None else self.structure.compression

    def found(
        self, groups: Sequence[Structure], ready: Mapping[int, Ready], sync: Sync
    ) -> tuple[dict[int, Team], list[Outgoing]]:
        """Makes each group a team. Raises UsageError where the batch is too small for them."""
        assert self._first is not None
        if sync.service is not None:
            training = sum(
                not all(ready[one].only_serves for one in group.workers) for group in groups
            )
            sync.service.check(teams=max(1, training), workers=len(ready))
            check_rooms(sync.service, {worker: room_of(own) for worker, own in ready.items()})
        global_batch, minimum = self._first.global_batch, self._first.minimum
        if not sync.has_common_steps and self._first.shares is None:
            minimum = least_share(global_batch, len(ready), minimum=minimum)
        trains = {
            i: group
            for i, group in enumerate(groups)
            if not all(ready[one].only_serves for one in group.workers)
        }
        if not trains:
            raise UsageError("all workers only serve (--only-serve): somebody must train")
        parts = self._parts(global_batch, trains, ready, minimum=minimum)
        teams: dict[int, Team] = {}
        outgoing: list[Outgoing] = []
        first_rank = first_sample = 0
        for place, group in enumerate(groups):
            number = self._take_number()
            whole = Whole(
                team=number,
                first_rank=first_rank,
                workers=len(ready),
                first_sample=first_sample,
                samples=global_batch,
            )
            first_rank += len(group.workers)
            first_sample += parts.get(place, 0)
            teams[number], told = self._factory.found(
                TeamFounded(team=number, members=group.workers, whole=whole),
                ready=ready,
                hellos=self._root.mind.hellos,
                batch=parts.get(place, minimum * len(group.workers)),
                structure=None if group.is_flat else group,
            )
            outgoing += told
        return teams, outgoing

    def _parts(
        self,
        global_batch: int,
        groups: Mapping[int, Structure],
        ready: Mapping[int, Ready],
        *,
        minimum: int,
    ) -> dict[int, int]:
        """Each group's samples per step; where each worker has its own data, those of its loader."""
        speeds = {i: self._speed(group.workers, ready) for i, group in groups.items()}
        if self.is_owned:
            return {i: max(1, round(speed)) for i, speed in speeds.items()}
        sizes = {i: len(group.workers) for i, group in groups.items()}
        return divide(global_batch, speeds, least_parts(global_batch, sizes, minimum=minimum))

    def found_of_root(self) -> Team:
        """All workers of a job that was one, as the team that they are until they part."""
        assert self._first is not None
        members = self._root.mind.members
        whole = Whole(
            team=self._take_number(),
            first_rank=0,
            workers=len(members),
            first_sample=0,
            samples=self._first.global_batch,
            is_root=True,
        )
        record = TeamFounded(team=whole.team, members=members, whole=whole, is_root=True)
        self._journal.append(record)
        return self._team_of_root(record)

    def _team_of_root(self, record: TeamFounded) -> Team:
        assert self._first is not None
        view = self._root.mind.view
        return Team(
            record.team,
            self._root,
            None if view is None else view.whole,
            batch=self._first.global_batch,
            minimum=self._first.minimum,
            is_root=True,
        )

    def _take_number(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    def _speed(self, members: tuple[int, ...], ready: Mapping[int, Ready]) -> float:
        """A group's part of the whole, as far as anything is known."""
        if self._weights is not None:
            return sum(self._weights.get(member, 1.0) for member in members)
        return sum(ready[member].weight or 1.0 for member in members)

    # --- members of teams, who are to be made others -----------------------------------------------

    def ready_of(self, teams: Iterable[Team]) -> dict[int, Ready]:
        """What the members of teams are ready for as founders of others, and how fast they are."""
        assert self._first is not None
        known: dict[int, tuple[Ready, float]] = {}
        for team in teams:
            view = team.mind.view
            for member in team.members:
                own = team.mind.readied(member)
                if own is not None and view is not None:
                    known[member] = (own, max(1.0, view.shares[view.rank_of(member)]))
        weights = self._weights
        shares = None if weights is None else tuple(weights.get(one, 1.0) for one in known)
        return {
            member: msgspec.structs.replace(
                own, global_batch=self._first.global_batch, weight=weight, shares=shares
            )
            for member, (own, weight) in known.items()
        }

    def bystanders(self, teams: Iterable[Team]) -> list[Bystander]:
        """Who is connected to a team's hub, and is not a member of it.

        Who was lost is not among them: it may still hang, and comes by itself when it does not.
        """
        return [
            Bystander(one.worker, team.mind.hellos[one.worker], team.mind.readied(one.worker))
            for team in teams
            for one in team.hub.status().workers
            if one.is_connected
            and one.state not in ("gone", "lost")
            and one.worker not in team.members
        ]

    # --- after a restart -------------------------------------------------------------------------

    def resume(self, records: Sequence[AnyRecord]) -> Resumed | None:
        """The teams as the journal knows them; None where there are none."""
        present: list[TeamFounded] = []
        founded: list[TeamFounded] = []
        sync = IN_STEP
        for record in records:
            if isinstance(record, TeamFounded):
                founded.append(record)
                self._next = record.team + 1
            elif isinstance(record, TeamsFounded):
                present, founded, sync = founded, [], record.sync
        if not present:
            return None
        founders = self._root.mind.founders
        ready = {one: own for one in founders if (own := self._root.mind.readied(one)) is not None}
        first = self.begin(ready, None)
        self.structure = self.structure_of_root(first.structure)
        teams: dict[int, Team] = {}
        for record in present:
            if record.is_root:
                teams[record.team] = self._team_of_root(record)
                continue
            team = self._factory.resume(record, minimum=first.minimum)
            if team is not None:
                teams[record.team] = team
        scopes = self.scopes(sync, {record.team: record.members for record in present})
        return Resumed(first, sync, teams, scopes)


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


def check_can_part(first: Ready | None, sync: Sync, groups: Sequence[Structure]) -> None:
    """Raises UsageError where the workers of a job that is one cannot be made teams."""
    if first is not None and first.must_stay:
        raise UsageError(f"this job cannot be switched to {sync}: {first.must_stay}")
    if len(groups) < 2:
        raise UsageError(
            f"this job cannot be switched to {sync}: its workers are one group. Name places in the "
            "cluster file, or plan groups with `gangline replan`"
        )
