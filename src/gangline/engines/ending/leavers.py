# SPDX-License-Identifier: Apache-2.0
"""Which workers that ended well had left a job that went on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from gangline.eventlog import log_path
from gangline.eventlog.parts import newest_part
from gangline.files.plainfile import open_plain
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_BYTES = 1 << 16


def has_left(run_dir: Path, worker: int) -> bool:
    """Whether the end of a worker's event log says that it was asked to leave, and did."""
    path = newest_part(log_path(run_dir, f"worker {worker}"))
    return any(event.what == "leave" for event in _last_decisions(path))


def _last_decisions(path: Path) -> list[Decision]:
    """The decisions among the last events of a log; none where there is no such log."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=Decision))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # another kind of event, or a part of a line
    return found
