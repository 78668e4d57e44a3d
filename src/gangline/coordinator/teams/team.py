# SPDX-License-Identifier: Apache-2.0
"""One team of a job whose groups train at their own pace: a hub of its own, and what it is up to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.hub import Hub
from gangline.coordinator.kept.records import InTeam, TeamFounded
from gangline.coordinator.outgoing import Outgoing
from gangline.spec.leases import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gangline.coordinator.kept.records import AnyRecord, Journal
    from gangline.coordinator.mind import Mind
    from gangline.coordinator.settings import Settings
    from gangline.eventlog import EventSink
    from gangline.protocol.messages import FromCoordinator, Hello, OfTeam, Reached, Ready
    from gangline.spec.exchange.structure import Structure
    from gangline.spec.view import Whole


class TeamJournal:
    """A team's part of the coordinator's journal."""

    def __init__(self, journal: Journal, team: int) -> None:
        self._journal = journal
        self._team = team
        self.records: Sequence[AnyRecord] = [
            record.record
            for record in journal.records
            if isinstance(record, InTeam) and record.team == team
        ]

    def append(self, record: AnyRecord) -> None:
        """Keeps a record, with the team's number on it."""
        self._journal.append(InTeam(team=self._team, record=record))  # type: ignore[arg-type]


class Team:
    """The members' hub, and how far they have come."""

    def __init__(
        self,
        number: int,
        hub: Hub,
        whole: Whole | None,
        *,
        batch: int,
        minimum: int,
        is_root: bool = False,
    ) -> None:
        self.number = number
        self.is_root = is_root
        """Whether it is all workers of a job that was one, and is about to be parted."""
        self.hub = hub
        self.whole = whole
        """Its place among the teams, as its members were told; None: they were told of none."""
        self.batch = batch
        """Samples of a global batch that are this team's."""
        self.minimum = minimum
        self.reached: Reached | None = None
        """Where it waits for the other teams, if it does."""
        self.away_since_s: float | None = None
        """Since when none of its members has been connected."""

    @property
    def mind(self) -> Mind:
        """What is known of its members."""
        return self.hub.mind

    @property
    def members(self) -> tuple[int, ...]:
        """Who is in it, in rank order."""
        return self.mind.members

    @property
    def only_serves(self) -> bool:
        """Whether its members hold parameters, and compute nothing."""
        ready = [self.mind.readied(member) for member in self.members]
        return bool(ready) and all(one is not None and one.only_serves for one in ready)

    @property
    def estate(self) -> Lease | None:
        """The samples that only its members have; None: all workers read the same."""
        for member in self.members:
            ready = self.mind.readied(member)
            if ready is not None and ready.owns is not None:
                return Lease(*ready.owns)
        return None

    @property
    def leader(self) -> int:
        """Who exchanges with the other teams' leaders."""
        return self.members[0]

    def is_meant(self, message: OfTeam) -> bool:
        """Whether a worker said this as a member of this team, not of one that it was in before."""
        return message.team == self.number or (self.is_root and message.team < 0)

    def tell(self, message: FromCoordinator) -> list[Outgoing]:
        """The same message for all members, and for those that are about to enter."""
        return [Outgoing(one, message) for one in self.mind.hellos]


class TeamFactory:
    """Makes the hubs of teams."""

    def __init__(
        self,
        settings: Settings,
        events: EventSink,
        clock: Callable[[], float],
        journal: Journal,
    ) -> None:
        self._settings = settings
        self._events = events
        self._clock = clock
        self._journal = journal

    def found(
        self,
        record: TeamFounded,
        *,
        ready: Mapping[int, Ready],
        hellos: Mapping[int, Hello],
        batch: int,
        structure: Structure | None,
    ) -> tuple[Team, list[Outgoing]]:
        """A team of these founders, and its first view."""
        self._journal.append(record)
        hub = self._hub(record)
        for worker in record.members:
            hub.connect(msgspec.structs.replace(hellos[worker], worker=worker))
        outgoing: list[Outgoing] = []
        founders = list(ready)
        for worker in record.members:
            own = ready[worker]
            shares = own.shares
            if shares is not None:
                shares = tuple(shares[founders.index(one)] for one in record.members)
            changed = msgspec.structs.replace(
                own,
                global_batch=batch,
                shares=shares,
                max_samples=own.max_samples or own.global_batch,
                attempt=0,
                structure=structure,
            )
            outgoing += hub.receive(worker, changed)
        first = ready[record.members[0]]
        return Team(record.team, hub, record.whole, batch=batch, minimum=first.minimum), outgoing

    def resume(self, record: TeamFounded, *, minimum: int) -> Team | None:
        """A team as the journal knows it; None where it had no view yet."""
        hub = self._hub(record)
        view = hub.mind.view
        if view is None:
            return None
        whole = view.whole or record.whole
        return Team(record.team, hub, whole, batch=view.global_batch, minimum=minimum)

    def _hub(self, record: TeamFounded) -> Hub:
        return Hub(
            self._settings.of_team(len(record.members)),
            events=self._events,
            clock=self._clock,
            journal=TeamJournal(self._journal, record.team),
            whole=record.whole,
        )
