# SPDX-License-Identifier: Apache-2.0
"""The coordinator's journal: what it must still know when it is killed and started again.

One line of JSON per record, on the disk before anybody is told of what it says: so no view number is
ever given twice. A line that was cut off by the end of its writer is dropped when it is read again.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from gangline.runtime.messages import Hello, Ready
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision
from gangline.spec.plainfile import open_plain, read_plain
from gangline.spec.structure import Structure
from gangline.spec.sync import Sync
from gangline.spec.view import View, Whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gangline.eventlog import EventSink

_log = logging.getLogger(__name__)

JOURNAL_NAME = "journal.jsonl"
MAX_UNWRITTEN_BYTES = 16 << 20
"""So much is kept in memory while the disk is full: about two hours of 25 records per second."""


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


class Ended(Record, frozen=True, kw_only=True, tag="ended"):
    """All members said goodbye: there is nothing to go on with."""


class InTeam(Record, frozen=True, kw_only=True, tag="in_team"):
    """What a team keeps of its own members and views."""

    team: int
    record: Greeted | Founded | Readied | Lowered | ScriptEnded | Published | Ended


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


AnyRecord = (
    Greeted
    | Founded
    | Readied
    | Lowered
    | ScriptEnded
    | Published
    | Restructured
    | Ended
    | TeamFounded
    | TeamsFounded
    | TeamLost
    | Switched
    | Leased
    | Emptied
    | Merged
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
        """Keeps a record, for good when this returns."""
        ...


class NoJournal:
    """For a coordinator whose end is that of its job."""

    records: tuple[AnyRecord, ...] = ()

    def append(self, record: AnyRecord) -> None:
        """Keeps nothing."""


class FileJournal:
    """A journal in a file. What cannot be written, on a full disk, is tried again with the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records, sound_bytes = _read(path)
        size = path.stat().st_size if path.exists() else 0
        self.cut_bytes = size - sound_bytes
        """How much of the file's end nobody could read; it is cut off."""
        if self.records and isinstance(self.records[-1], Ended):
            self.records, sound_bytes = [], 0
        self._descriptor = open_plain(path, os.O_RDWR | os.O_CREAT, mode=0o600)
        os.ftruncate(self._descriptor, sound_bytes)
        self._length = sound_bytes
        self._unwritten = bytearray()
        self._has_failed = False
        self._is_given_up = False

    def append(self, record: AnyRecord) -> None:
        """Keeps a record, for good when this returns; unless the disk is full."""
        if len(self._unwritten) >= MAX_UNWRITTEN_BYTES:
            self._give_up()
        if not self._is_given_up:  # a gap would make what follows it wrong
            self._unwritten += msgspec.json.encode(record) + b"\n"
        try:
            written = os.pwrite(self._descriptor, self._unwritten, self._length)
            os.fsync(self._descriptor)
        except OSError as error:
            # Training must not end because of this: the next record tries again.
            if not self._has_failed:
                _log.warning("the journal %s is not complete on the disk: %s", self._path, error)
            self._has_failed = True
            return
        self._has_failed = False
        self._length += written
        del self._unwritten[:written]

    def _give_up(self) -> None:
        """Memory must not fill up, too: what comes from here on is not kept, ever."""
        if not self._is_given_up:
            _log.error(
                "the journal %s could not be written for too long, and ends here: a coordinator that "
                "is started again will not know what came after; make room on its disk, and start "
                "the job anew from its newest checkpoint when that suits you",
                self._path,
            )
        self._is_given_up = True

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def open_journal(run_dir: Path, events: EventSink) -> FileJournal:
    """The journal of a run; a part of it that cannot be read is said to be missing."""
    path = run_dir / JOURNAL_NAME
    try:
        journal = FileJournal(path)
    except OSError as error:
        raise UsageError(
            f"cannot use the coordinator's journal {path}: {error.strerror}; remove it, or choose "
            "another --run-dir"
        ) from error
    if journal.cut_bytes:
        events.write(
            Decision(
                t=time.time(),
                what="cut_journal",
                reason=(
                    f"the last {journal.cut_bytes} bytes of {path} cannot be read "
                    f"and are cut off: the coordinator goes on from the {len(journal.records)} "
                    "records before them"
                ),
                numbers={
                    "cut_bytes": float(journal.cut_bytes),
                    "records": float(len(journal.records)),
                },
            )
        )
    return journal


def _read(path: Path) -> tuple[list[AnyRecord], int]:
    """The records up to the first that cannot be read, and how many bytes they take."""
    records: list[AnyRecord] = []
    sound_bytes = 0
    if not os.path.lexists(path):
        return records, 0
    for line in read_plain(path).splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            records.append(msgspec.json.decode(line, type=AnyRecord))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            break
        sound_bytes += len(line)
    return records, sound_bytes
