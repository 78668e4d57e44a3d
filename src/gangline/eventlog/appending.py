# SPDX-License-Identifier: Apache-2.0
"""A file to which whole lines are appended, whatever happens to the disk under it."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING

from gangline.files.plainfile import open_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_TAIL_BYTES = 1 << 16


class LogFile:
    """Appends lines; after an error it opens the file anew at the next attempt.

    The file only ever ends in a whole line: what a failing disk took of a line is cut off again,
    and so is a torn last line that a killed process left behind. While lines are missing, a mark in
    their place says so, for the case that they are never written.
    """

    def __init__(self, path: Path, *, header: Callable[[], bytes]) -> None:
        self._path = path
        self._header = header
        """Makes the line that says who writes from here on."""
        self._needs_header = True
        self._descriptor: int | None = None
        self._mark_bytes = 0
        """The length of the mark that the file ends in; 0: there is none."""

    @property
    def size(self) -> int:
        """How long the file is; 0 while it is not open."""
        return 0 if self._descriptor is None else os.fstat(self._descriptor).st_size

    def append(self, lines: Sequence[bytes]) -> tuple[int, str | None]:
        """Appends `lines`; how many of them are now in the file, and what went wrong, if anything.

        Opens the file, and writes its header, even if there are no lines.
        """
        try:
            descriptor = self._open()
            self._remove_mark(descriptor)
            if self._needs_header:
                lines = [self._header(), *lines]
            written, error = _write(descriptor, b"".join(lines))
        except OSError as failure:
            self.close()
            return 0, _reason(failure)
        ends = list(accumulate(len(line) for line in lines))
        whole = sum(end <= written for end in ends)
        if error is not None:
            with suppress(OSError):
                size = os.fstat(descriptor).st_size
                os.ftruncate(descriptor, size - written + (ends[whole - 1] if whole else 0))
            self.close()
        if self._needs_header and whole:
            self._needs_header = False
            whole -= 1
        return whole, error

    def mark(self, line: bytes) -> list[bytes]:
        """Ends the file in `line` until the next append, which removes it, if it can be written.

        There may be no room for it: then the last lines make room, and are returned, to be appended
        again.
        """
        taken: list[bytes] = []
        try:
            descriptor = self._open()
            self._remove_mark(descriptor)
            if self._needs_header:
                return taken  # nobody could read it
            while not _write_whole(descriptor, line):
                last = _take_last_line(descriptor)
                if last is None:
                    return taken
                taken.insert(0, last)
            self._mark_bytes = len(line)
        except OSError:
            self.close()
        return taken

    def _remove_mark(self, descriptor: int) -> None:
        if self._mark_bytes:
            size = os.fstat(descriptor).st_size
            os.ftruncate(descriptor, max(0, size - self._mark_bytes))
            self._mark_bytes = 0

    def close(self) -> None:
        """Closes the file; the next append opens it again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):
                os.close(descriptor)

    def _open(self) -> int:
        if self._descriptor is not None and os.fstat(self._descriptor).st_nlink == 0:
            # Somebody removed the file: what we would write into it, nobody could ever read.
            self.close()
        if self._descriptor is None:
            self._descriptor = open_plain(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            _cut_torn_line(self._descriptor)
            if os.fstat(self._descriptor).st_size == 0:
                self._needs_header = True
                self._mark_bytes = 0
        return self._descriptor


def _write(descriptor: int, data: bytes) -> tuple[int, str | None]:
    """Writes as much of `data` as the disk takes: how much that was, and why no more."""
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError as failure:
        return written, _reason(failure)
    return written, None


def _write_whole(descriptor: int, line: bytes) -> bool:
    """Whether there was room for a whole line; else nothing of it is left."""
    written, error = _write(descriptor, line)
    if error is None:
        return True
    os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
    return False


def _take_last_line(descriptor: int) -> bytes | None:
    """Cuts off the last line and returns it; None where only the first one is left."""
    end = os.fstat(descriptor).st_size
    start = max(0, end - _TAIL_BYTES)
    tail = os.pread(descriptor, end - start, start)
    newline = tail.rfind(b"\n", 0, len(tail) - 1)
    if newline < 0:
        return None
    os.ftruncate(descriptor, start + newline + 1)
    return tail[newline + 1 :]


def _cut_torn_line(descriptor: int) -> None:
    end = os.fstat(descriptor).st_size
    whole = end
    while whole > 0:
        start = max(0, whole - _TAIL_BYTES)
        newline = os.pread(descriptor, whole - start, start).rfind(b"\n")
        if newline >= 0:
            whole = start + newline + 1
            break
        whole = start
    if whole < end:
        os.ftruncate(descriptor, whole)


def _reason(failure: OSError) -> str:
    return failure.strerror or str(failure)
