# SPDX-License-Identifier: Apache-2.0
"""The records of the coordinator's journal: what it must still know when it is started again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from gangline.protocol.messages import Hello, Ready
from gangline.spec.exchange.structure import Structure
from gangline.spec.serving import Entry, Serving
from gangline.spec.sync import Sync
from gangline.spec.view import View, Whole

if TYPE_CHECKING:
    from collections.abc import Sequence


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What all records have: a kind."""


class Greeted(Record, frozen=True, kw_only=True, tag="greeted"):
    """A worker said hello, and has this number."""

    worker: int
    hello: Hello


class Founded(Record, frozen=True, kw_only=True, tag="founded"):
    """These workers begin the job."""

    founders: tuple[int, ...]
    """In the order of their ranks, if none is lost."""
    lost: tuple[int, ...] = ()
    """Which of them were lost before there was a view."""
    attempt: int = 0
    """How often they had to begin again."""

    @property
    def members(self) -> tuple[int, ...]:
        """The founders that are left."""
        if not self.lost:
            return self.founders
        return tuple(worker for worker in self.founders if worker not in self.lost)


class Readied(Record, frozen=True, kw_only=True, tag="readied"):
    """A worker has prepared its model."""

    worker: int
    ready: Ready


class Lowered(Record, frozen=True, kw_only=True, tag="lowered"):
    """A worker ran out of memory; who takes its place gets no more samples than this."""

    worker: int
    max_samples: int


class ScriptEnded(Record, frozen=True, kw_only=True, tag="script_ended"):
    """A member's script has ended by itself, at this position."""

    worker: int
    position: tuple[int, ...]


class Published(Record, frozen=True, kw_only=True, tag="published"):
    """A view was made known."""

    view: View
    is_recovery: bool
    leaving: tuple[int, ...] = ()
    """Who takes part up to this view, and is told that it may go."""


class Restructured(Record, frozen=True, kw_only=True, tag="restructured"):
    """Another structure was asked for, or planned."""

    structure: Structure | None
    """None: all in one ring."""
    is_planned: bool
    """Whether it goes on being planned from what is measured."""


class KeptOut(Record, frozen=True, kw_only=True, tag="kept_out"):
    """An operator keeps a worker out; or takes it back."""

    worker: int
    is_out: bool


class Paused(Record, frozen=True, kw_only=True, tag="paused"):
    """The job stands still where the number is odd, and goes on where it is even."""

    number: int


class EndOrdered(Record, frozen=True, kw_only=True, tag="end_ordered"):
    """An operator has ended the job: whoever takes part is to leave."""


class Ended(Record, frozen=True, kw_only=True, tag="ended"):
    """All members said goodbye: there is nothing to go on with."""


class InTeam(Record, frozen=True, kw_only=True, tag="in_team"):
    """What a team keeps of its own members and views."""

    team: int
    record: Greeted | Founded | Readied | Lowered | ScriptEnded | Published | KeptOut | Ended


class TeamFounded(Record, frozen=True, kw_only=True, tag="team_founded"):
    """Groups train at their own pace, and this is one of them, as soon as all are founded."""

    team: int
    members: tuple[int, ...]
    whole: Whole
    is_root: bool = False
    """Whether it is all workers of a job that was one, whose own hub looks after them."""


class TeamsFounded(Record, frozen=True, kw_only=True, tag="teams_founded"):
    """The teams that were founded since the last such record are the job's, instead of those before."""

    sync: Sync


class TeamLost(Record, frozen=True, kw_only=True, tag="team_lost"):
    """A team is no more."""

    team: int


class Switched(Record, frozen=True, kw_only=True, tag="switched"):
    """The teams are held together in another way than they were founded with."""

    sync: Sync
    is_regrouping: bool = False
    """Whether they must be other teams for it, and are stopped first."""


class Closed(Record, frozen=True, kw_only=True, tag="closed"):
    """All teams have used what they were given of the epoch, and are merged."""

    epoch: int
    step: int
    round: int
    is_complete: bool
    teams: tuple[int, ...] = ()
    regroup: Sync | None = None
    """How they are held together after they are made other teams."""


class Leased(Record, frozen=True, kw_only=True, tag="leased"):
    """A team was given samples of the epoch."""

    team: int
    epoch: int
    length: int
    number: int
    start: int
    stop: int


class Emptied(Record, frozen=True, kw_only=True, tag="emptied"):
    """A team was told that nothing is left of the epoch."""

    team: int
    epoch: int


class Merged(Record, frozen=True, kw_only=True, tag="merged"):
    """A round was committed: the teams' samples up to these offsets count."""

    number: int
    epoch: int
    offsets: dict[int, int]
    """Of the teams that were merged; and of lost ones whose samples those had carried on."""
    is_whole: bool = False
    level: int = 0
    is_all: bool = True
    """Whether all teams were merged: only then do their samples count."""


class Applied(Record, frozen=True, kw_only=True, tag="applied"):
    """An update got its place in the sequence of the parameter servers: its samples count."""

    entry: Entry
    epoch: int
    offsets: dict[int, int]
    """Of the teams whose pushes it is made of: up to where in their orders it counts."""


class Voided(Record, frozen=True, kw_only=True, tag="voided"):
    """What a team has computed of this part of its order counts nothing: it is free again."""

    team: int
    epoch: int
    start: int
    stop: int
    clock: int = -1
    """Of a push that came too late; -1: a server was lost with it."""
    late_by: int = 0
    """By how many rounds it came too late."""


class Serves(Record, frozen=True, kw_only=True, tag="serves"):
    """Who holds which part of the parameters."""

    serving: Serving


class RoundsLost(Record, frozen=True, kw_only=True, tag="rounds_lost"):
    """The coordinator was started again: rounds up to this one may have been opened, and are lost."""

    number: int


AnyRecord = (
    Greeted
    | Founded
    | Readied
    | Lowered
    | ScriptEnded
    | Published
    | Restructured
    | KeptOut
    | Paused
    | EndOrdered
    | Ended
    | TeamFounded
    | TeamsFounded
    | TeamLost
    | Switched
    | Leased
    | Emptied
    | Merged
    | Applied
    | Voided
    | Serves
    | RoundsLost
    | Closed
    | InTeam
)


class Journal(Protocol):
    """Where records are kept."""

    @property
    def records(self) -> Sequence[AnyRecord]:
        """What was kept before this process began."""
        ...

    def append(self, record: AnyRecord) -> None:
        """Keeps a record, for good when this returns; `Applied` as long as the machine stays up."""
        ...


class NoJournal:
    """For a coordinator whose end is that of its job."""

    records: tuple[AnyRecord, ...] = ()

    def append(self, record: AnyRecord) -> None:
        """Keeps nothing."""
