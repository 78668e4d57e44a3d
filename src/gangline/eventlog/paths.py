# SPDX-License-Identifier: Apache-2.0
"""Where the event logs of a run lie: one file per writing process, in `<run_dir>/events/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def events_dir(run_dir: Path) -> Path:
    """The folder that holds all logs of one run."""
    return run_dir / "events"


def part_of(path: Path) -> tuple[str, int]:
    """The log that a file is a part of, and which part: 2 of `worker-3` for `worker-3.2.jsonl`."""
    stem, _, number = path.stem.rpartition(".")
    if stem and number.isdecimal():
        return stem, int(number)
    return path.stem, 0


def part_path(path: Path, part: int) -> Path:
    """Where a log goes on; part 0 is the log itself."""
    return path if part == 0 else path.with_name(f"{path.stem}.{part}{path.suffix}")


def log_path(run_dir: Path, source: str) -> Path:
    """The log of one source: `worker 3` writes `<run_dir>/events/worker-3.jsonl`."""
    return events_dir(run_dir) / f"{source.replace(' ', '-')}.jsonl"
