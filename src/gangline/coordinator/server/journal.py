# SPDX-License-Identifier: Apache-2.0
"""The coordinator's journal on the disk.

One line of JSON per record, on the disk before anybody is told of what it says: so no view number is
ever given twice. A line that was cut off by the end of its writer is dropped when it is read again.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.kept.compaction import still_needed
from gangline.coordinator.kept.records import AnyRecord, Applied, Ended
from gangline.files.plainfile import open_plain, read_plain
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.eventlog import EventSink


_log = logging.getLogger(__name__)

JOURNAL_NAME = "journal.jsonl"

COMPACT_BYTES = 4 << 20
"""A journal that has grown by so much, and to twice what was needed of it, is written anew."""
MAX_UNWRITTEN_BYTES = 16 << 20
"""So much is kept in memory while the disk is full: about two hours of 25 records per second."""
CLOSED = -1
"""In the place of a descriptor."""


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
        self._compact_at = max(COMPACT_BYTES, 2 * sound_bytes)
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
            if not isinstance(record, Applied):  # many per second; a killed process loses none
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
        if self._length >= self._compact_at:
            self._compact()

    def _compact(self) -> None:
        """Writes the file anew, without the records that nobody would miss."""
        records, _ = _read(self._path)
        needed = b"".join(msgspec.json.encode(one) + b"\n" for one in still_needed(records))
        try:
            descriptor = self._replace(needed)
        except OSError as error:  # the old file is whole, and goes on
            _log.warning("the journal %s could not be written anew: %s", self._path, error)
            self._compact_at = self._length + COMPACT_BYTES
            return
        os.close(self._descriptor)
        self._descriptor, self._length = descriptor, len(needed)
        self._compact_at = COMPACT_BYTES + 2 * len(needed)

    def _replace(self, content: bytes) -> int:
        """Puts another file in the journal's place, in one piece, and on the disk; its descriptor."""
        partial = self._path.with_name(f"{self._path.name}.new")
        partial.unlink(missing_ok=True)
        descriptor = open_plain(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode=0o600)
        try:
            written = os.pwrite(descriptor, content, 0)
            if written < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
            partial.replace(self._path)
        except OSError:
            os.close(descriptor)
            partial.unlink(missing_ok=True)
            raise
        return descriptor

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
        """Closes the file. May be called twice: the number may be another file's by then."""
        descriptor, self._descriptor = self._descriptor, CLOSED
        if descriptor != CLOSED:
            os.close(descriptor)


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
