# SPDX-License-Identifier: Apache-2.0
"""The event logs of this machine, and how far the coordinator has each of them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from gangline.eventlog import events_dir, log_path
from gangline.eventlog.parts import locate, total_size
from gangline.eventlog.reader import MAX_LINE_BYTES
from gangline.files.plainfile import open_plain
from gangline.protocol.streaming import LAUNCHER, MAX_SENT_BYTES, Chunk

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_BLOCK_BYTES = 1 << 16
_MARK = b'"kind":"events_lost"'


class SentFiles:
    """What is to be sent of the logs in a run folder. Reads no more of them than one request has."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = events_dir(run_dir)
        self._launcher = log_path(run_dir, "launcher")
        self._received: dict[int, int] = {}
        """Per worker, as the coordinator said last."""
        self._turn = 0

    @property
    def has_workers(self) -> bool:
        """Whether any worker has written a log: without one there is nothing to tell."""
        return bool(self._logs())

    def note(self, received: Mapping[int, int]) -> bool:
        """The coordinator says how far the logs have come, maybe less far than before; is it news?"""
        before = self._received
        own = {worker: received.get(worker, before.get(worker, 0)) for worker in self._logs()}
        self._received = {worker: max(0, offset) for worker, offset in own.items()}
        return self._received != before

    def next_chunks(self, *, is_final: bool = False) -> tuple[Chunk, ...]:
        """As much as one request takes, of all logs that have something new, in turn."""
        logs = list(self._logs().items())
        self._turn += 1
        room, chunks = MAX_SENT_BYTES, []
        for place in range(len(logs)):
            worker, path = logs[(place + self._turn) % len(logs)]
            offset = self._received.get(worker, 0)
            data, skipped = _read(path, offset, room, is_final=is_final)
            if data or skipped:
                chunks.append(Chunk(worker=worker, offset=offset, data=data, skipped=skipped))
                room -= len(data)
        return tuple(chunks)

    def num_unsent(self) -> int:
        """How many bytes the coordinator does not have, where there is a worker to tell of."""
        sizes = {worker: total_size(path) for worker, path in self._logs().items()}
        return sum(max(0, size - self._received.get(worker, 0)) for worker, size in sizes.items())

    def _logs(self) -> dict[int, Path]:
        """By worker. A worker's log is there when it has a number."""
        found: dict[int, Path] = {}
        with suppress(OSError):
            for name in sorted(os.listdir(self.folder)):
                number = name.removeprefix("worker-").removesuffix(".jsonl")
                if name == f"worker-{number}.jsonl" and number.isdecimal():
                    found[int(number)] = self.folder / name
        return {**found, LAUNCHER: self._launcher} if found else {}


def _read(path: Path, offset: int, room: int, *, is_final: bool) -> tuple[bytes, int]:
    """Whole lines from a place on, and the length of one behind them that is too long to be sent."""
    part, offset, is_last = locate(path, offset)
    try:
        with os.fdopen(open_plain(part), "rb") as file:
            data = os.pread(file.fileno(), room, offset)
            end = data.rfind(b"\n") + 1
            if end == 0 and room == MAX_SENT_BYTES == len(data):
                return b"", _line_length(file.fileno(), offset)
            is_all = is_last and offset + end == os.fstat(file.fileno()).st_size
    except OSError:
        return b"", 0  # it is not there yet, or cannot be read now
    data = data[:end]
    if is_all and not is_final:
        # This line is taken back when those are written that it says are missing.
        last = data.rfind(b"\n", 0, end - 1) + 1
        if _MARK in data[last:]:
            data = data[:last]
    return data, 0


def _line_length(descriptor: int, offset: int) -> int:
    """The length of the line that begins here; 0 where its end is not there yet."""
    length = 0
    while length <= MAX_LINE_BYTES:
        block = os.pread(descriptor, _BLOCK_BYTES, offset + length)
        found = block.find(b"\n")
        if found >= 0:
            return length + found + 1
        if not block:
            return 0
        length += len(block)
    return length
