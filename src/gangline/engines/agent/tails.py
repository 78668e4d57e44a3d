# SPDX-License-Identifier: Apache-2.0
"""Follows what workers write on a host, so that the launcher has it, too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gangline.eventlog import log_path
from gangline.eventlog.parts import locate
from gangline.files.plainfile import open_plain
from gangline.protocol.agents import CHUNK_BYTES, Wrote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Tails:
    """The files of all workers of a host, from where they were read last."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._offsets: dict[tuple[int, bool], int] = {}

    def log_of(self, worker: int) -> Path:
        """Where a worker's output goes."""
        return self._run_dir / "workers" / f"{worker}.log"

    def follow(self, worker: int) -> None:
        """A worker has begun to write."""
        self._offsets |= {(worker, False): 0, (worker, True): 0}

    def take(self) -> Iterator[Wrote]:
        """What is new, some of each file; who asks again gets the rest."""
        for worker, is_event in tuple(self._offsets):
            data = self._read(worker, is_event)
            if data:
                self._offsets[worker, is_event] += len(data)
                yield Wrote(worker=worker, data=data, is_event=is_event)

    def is_read(self, worker: int) -> bool:
        """Whether all that a worker wrote has been taken; a worker that has ended writes no more."""
        return not any(self._read(worker, is_event, limit=1) for is_event in (False, True))

    def _read(self, worker: int, is_event: bool, *, limit: int = CHUNK_BYTES) -> bytes:
        source = f"worker {worker}"
        path, offset = self.log_of(worker), self._offsets[worker, is_event]
        if is_event:
            path, offset, _ = locate(log_path(self._run_dir, source), offset)
        try:
            descriptor = open_plain(path)
        except OSError:
            return b""  # nothing was written yet
        try:
            return os.pread(descriptor, limit, offset)
        finally:
            os.close(descriptor)
