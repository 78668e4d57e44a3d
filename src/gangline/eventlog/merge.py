# SPDX-License-Identifier: Apache-2.0
"""Merges the logs of all processes of a run into one stream, by time."""

from __future__ import annotations

import heapq
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from gangline.eventlog.parts import grouped
from gangline.eventlog.paths import events_dir
from gangline.eventlog.reader import LogNotes, read_events
from gangline.spec.errors import LogError, UsageError
from gangline.spec.event import LogOpened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gangline.spec.event import AnyEvent


def read_run(run_dir: Path, *, notes: list[LogNotes] | None = None) -> Iterator[AnyEvent]:
    """The events of a whole run. With `notes`, one per log is added, and torn logs are read."""
    return merge_logs(find_logs(run_dir), notes=notes)


def find_logs(run_dir: Path) -> list[Path]:
    """The logs in a run folder, sorted by name; an error that says what is missing if none."""
    if not run_dir.is_dir():
        raise UsageError(
            f"there is no run folder {run_dir}; `gangline run` makes one and prints its name"
        )
    folder = events_dir(run_dir)
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise LogError(
            f"there are no event logs in {folder}; give the folder of a run, "
            f"which has events/*.jsonl in it"
        )
    return paths


def merge_logs(paths: Sequence[Path], *, notes: list[LogNotes] | None = None) -> Iterator[AnyEvent]:
    """The events of several logs by time; the order within each log is kept, whatever its clock.

    The times in logs of other machines become those of the machine that keeps them.
    """
    streams = []
    for parts in grouped(paths):
        own = [None if notes is None else LogNotes(path=str(path)) for path in parts]
        if notes is not None:
            notes += [one for one in own if one is not None]
        streams.append(_keyed(_read_parts(parts, own)))
    return (event for _, event in heapq.merge(*streams, key=itemgetter(0)))


def _read_parts(parts: list[Path], notes: list[LogNotes | None]) -> Iterator[AnyEvent]:
    """One log in several files, one after the other."""
    for path, own in zip(parts, notes, strict=True):
        yield from read_events(path, notes=own)


def _keyed(events: Iterator[AnyEvent]) -> Iterator[tuple[float, AnyEvent]]:
    latest, ahead_s = float("-inf"), 0.0
    for event in events:
        if isinstance(event, LogOpened):
            ahead_s = event.ahead_s
        if ahead_s:
            event = msgspec.structs.replace(event, t=event.t + ahead_s)
        # A clock may be set back during a run; what was written later still happened later.
        latest = max(latest, event.t)
        yield latest, event
