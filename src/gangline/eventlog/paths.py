# SPDX-License-Identifier: Apache-2.0
"""Where the event logs of a run lie: one file per writing process, in `<run_dir>/events/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def events_dir(run_dir: Path) -> Path:
    """The folder that holds all logs of one run."""
    return run_dir / "events"


def log_path(run_dir: Path, source: str) -> Path:
    """The log of one source: `worker 3` writes `<run_dir>/events/worker-3.jsonl`."""
    return events_dir(run_dir) / f"{source.replace(' ', '-')}.jsonl"
