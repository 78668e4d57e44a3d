# SPDX-License-Identifier: Apache-2.0
"""Reads the end of a worker's log: what went wrong is usually its last traceback."""

from __future__ import annotations

import io
import os
import re
from typing import TYPE_CHECKING

from gangline.files.plainfile import open_plain

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = "Traceback (most recent call last):"
_CHAIN = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_PREFIX = re.compile(r"^\[rank\d+\]: ?")
"""What torch writes before each line of an error, where its process groups are in use."""
_TAIL_BYTES = 256 * 1024
_NUM_MESSAGE_LINES = 20
"""An error message may have several lines; more after it than this is other output."""


def read_tail(path: Path, *, limit_bytes: int = _TAIL_BYTES) -> str:
    """The last part of a text file; empty where there is none, or something else."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - limit_bytes), os.SEEK_SET)
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_lines(path: Path, count: int) -> str:
    """The last lines of a log, for a worker that left no traceback."""
    return "\n".join(read_tail(path).rstrip().splitlines()[-count:])


def last_traceback(path: Path) -> str | None:
    """The last traceback in a log, with the exceptions it was raised from; None without one."""
    lines = [_PREFIX.sub("", line) for line in read_tail(path).rstrip().splitlines()]
    headers = [index for index, line in enumerate(lines) if line == _HEADER]
    if not headers:
        return None
    end = _message_end(lines, headers[-1])
    return "\n".join(lines[_chain_start(lines, headers) : end])


def _chain_start(lines: list[str], headers: list[int]) -> int:
    start = headers[-1]
    for earlier in reversed(headers[:-1]):
        before = [line for line in lines[earlier:start] if line.strip()]
        if before[-1] not in _CHAIN:
            break
        start = earlier
    return start


def _message_end(lines: list[str], header: int) -> int:
    error = header + 1
    while error < len(lines) and (lines[error].startswith(" ") or not lines[error].strip()):
        error += 1
    is_last = len(lines) - error <= _NUM_MESSAGE_LINES
    return len(lines) if is_last else error + 1
