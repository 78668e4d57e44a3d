# SPDX-License-Identifier: Apache-2.0
"""Reads what the logs of a run have more, for those who look on: so much at a time, and no more."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from gangline.eventlog import events_dir
from gangline.files.plainfile import open_plain
from gangline.spec.event import AnyEvent, LogOpened

if TYPE_CHECKING:
    from pathlib import Path

BEGIN_BYTES = 24 << 20
"""So much of the ends of all logs is read when somebody begins to look."""
READ_BYTES = 4 << 20
"""So much of all logs is read at once; what is more is skipped."""
LEAST_BYTES = 64 << 10
"""Of each log, however many there are."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class LogTail:
    """Follows all logs of a run folder. Only one thread at a time reads."""

    def __init__(self, run_dir: Path | None) -> None:
        self._folder = None if run_dir is None else events_dir(run_dir)
        self._offsets: dict[str, int] = {}
        self._ahead_s: dict[str, float] = {}
        self._decoder = msgspec.json.Decoder(AnyEvent)
        self.skipped_bytes = 0
        """What was not read while somebody looked: the logs have grown by more than is read at once."""

    def begin(self, total: int) -> list[AnyEvent]:
        """As `read`, for those who begin to look: they have missed nothing of what grew before."""
        events = self.read(total)
        self.skipped_bytes = 0
        return events

    def read(self, total: int) -> list[AnyEvent]:
        """What was written since the last time, by time, up to so many bytes; the newest ones."""
        paths = [] if self._folder is None else sorted(self._folder.glob("*.jsonl"))
        limit = max(LEAST_BYTES, total // max(len(paths), 1))
        events: list[AnyEvent] = []
        for path in paths:
            events += self._read_one(path, limit)
        events.sort(key=lambda event: event.t)
        return events

    def _read_one(self, path: Path, limit: int) -> list[AnyEvent]:
        name, is_new = path.name, path.name not in self._offsets
        offset = self._offsets.setdefault(name, 0)
        try:
            with os.fdopen(open_plain(path), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                offset = offset if offset <= size else 0  # shorter: another log
                begin = max(offset, size - limit)
                head = file.readline(limit) if begin > 0 and is_new else b""
                file.seek(begin)
                block = file.read(limit)
        except OSError:
            return []
        if begin > offset:  # somewhere in a line, whose rest is left out
            cut = block.find(b"\n") + 1
            block, begin = block[cut:], begin + cut
            self.skipped_bytes += 0 if is_new else begin - offset
        whole = block[: block.rfind(b"\n") + 1]
        self._offsets[name] = begin + len(whole)
        return self._decode(name, head + whole)

    def _decode(self, name: str, lines: bytes) -> list[AnyEvent]:
        """The events in some lines; what cannot be read, or is of a later version, is left out."""
        events: list[AnyEvent] = []
        for line in lines.splitlines():
            try:
                event = self._decoder.decode(line)
            except _UNREADABLE:
                continue
            if isinstance(event, LogOpened):
                self._ahead_s[name] = event.ahead_s
            ahead_s = self._ahead_s.get(name, 0.0)
            events.append(msgspec.structs.replace(event, t=event.t + ahead_s) if ahead_s else event)
        return events
