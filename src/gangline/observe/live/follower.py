# SPDX-License-Identifier: Apache-2.0
"""Reads what is new in the logs of a run, whoever writes them, as often as somebody asks."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from gangline.eventlog import events_dir, tail_events
from gangline.eventlog.paths import part_of
from gangline.spec.errors import LogError
from gangline.spec.event import LogOpened

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.spec.event import AnyEvent


class RunFollower:
    """All logs of a run folder, from where they were when it was made: a resumed run has older ones."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = events_dir(run_dir)
        self._offsets: dict[Path, int] = {path: _size(path) for path in self._logs()}
        self._ahead_s: dict[Path, float] = {}
        self._broken: set[Path] = set()

    def take(self) -> list[AnyEvent]:
        """The events that were written since the last time, by their times."""
        found: list[AnyEvent] = []
        for path in self._logs():
            if path not in self._broken:
                found += self._read(path)
        return sorted(found, key=attrgetter("t"))

    def _read(self, path: Path) -> list[AnyEvent]:
        try:
            events, self._offsets[path] = tail_events(path, self._offsets.get(path, 0))
        except LogError:
            self._broken.add(path)  # it stays so; the other logs can be read
            return []
        ahead_s, told = self._ahead_s.get(path, 0.0), []
        for event in events:
            if isinstance(event, LogOpened):
                ahead_s = self._ahead_s[path] = event.ahead_s
            told.append(msgspec.structs.replace(event, t=event.t + ahead_s) if ahead_s else event)
        return told

    def _logs(self) -> list[Path]:
        """Of a log that goes on in another file, only those parts that may have something new."""
        newest: dict[str, tuple[int, Path]] = {}
        found = []
        for path in self._folder.glob("*.jsonl"):
            stem, part = part_of(path)
            found.append((stem, part, path))
            newest[stem] = max(newest.get(stem, (part, path)), (part, path))
        return sorted(path for stem, part, path in found if part >= newest[stem][0] - 1)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
