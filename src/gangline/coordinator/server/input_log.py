# SPDX-License-Identifier: Apache-2.0
"""Writes a coordinator's recording into the run folder: some files, bounded in size."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from gangline.coordinator.kept.recording import Entry, digest, framed, opening_of
from gangline.files.plainfile import open_plain
from gangline.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gangline.coordinator.coordinator import Coordinator
    from gangline.coordinator.inputs import Input
    from gangline.coordinator.outputs import Output

FOLDER = "inputs"
MAX_FILE_BYTES = 8 << 20
"""Another file is begun when a file has so much behind its snapshot; or as much as the snapshot is."""
MAX_FILES = 4
"""How many are kept."""

_log = logging.getLogger("gangline.coordinator")


class InputLog:
    """Records what a coordinator is told. Whatever fails here is said once, and training goes on."""

    def __init__(
        self,
        run_dir: Path,
        coordinator: Coordinator,
        *,
        run: str,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_files: int = MAX_FILES,
    ) -> None:
        self._folder = run_dir / FOLDER
        self._coordinator = coordinator
        self._run = run
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        self._descriptor: int | None = None
        self._size = self._limit = 0
        self._has_failed = False
        self.begin_file()

    def note(self, given: Input, outputs: Sequence[Output], now: float) -> None:
        """Something happened, and this came of it."""
        if self._descriptor is None or self._size >= self._limit:
            self.begin_file()  # its snapshot has this input already
            return
        self._write(framed(Entry(now, given, digest(outputs))))

    def begin_file(self) -> None:
        """Begins another file, with a snapshot of the coordinator; drops the oldest."""
        self.close()
        try:
            # A detector of somebody's own may hold what cannot be written down.
            opening = opening_of(self._coordinator, run=self._run, version=VERSION)
        except Exception as error:
            self._fail(error)
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            known = recorded_files(self._folder.parent)
            number = 1 + max((int(path.stem) for path in known), default=-1)
            for path in known[: max(0, len(known) + 1 - self._max_files)]:
                path.unlink()
            path = self._folder / f"{number:06}.msgpack"
            self._descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
        except OSError as error:
            self._fail(error)
            return
        data = framed(opening)
        self._size = 0
        self._limit = len(data) + max(self._max_file_bytes, len(data))
        self._write(data)

    def close(self) -> None:
        """Takes nothing more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _write(self, data: bytes) -> None:
        assert self._descriptor is not None
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            written = 0
            self._fail(error)
        self._size += written
        if written < len(data):  # a file with a hole is worth nothing from there on
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size - written)
            self.close()
        else:
            self._has_failed = False

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            _log.warning("what the coordinator is told is not recorded: %s", error)
        self._has_failed = True


def recorded_files(run_dir: Path) -> list[Path]:
    """The files of a run's recording, oldest first."""
    found = (run_dir / FOLDER).glob("*.msgpack")
    return sorted(path for path in found if path.stem.isdecimal())
