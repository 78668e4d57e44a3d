# SPDX-License-Identifier: Apache-2.0
"""The disk is full: training goes on, somebody says what is missing, what was kept stays usable."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from live_jobs import LiveJob, report, until

from gangline.eventlog import read_run
from gangline.observe import summarize
from gangline.spec.event import EventsLost
from gangline.worker.checkpoint.files import CheckpointFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

FULL = "the disk is full"
_PAGE_BYTES = 4096


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A disk of its own for a folder."""
    if os.geteuid() != 0:
        pytest.skip("to mount a small disk needs root")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, *, but_bytes: int = 0) -> None:
    """Leaves so much room on a disk, and no more."""
    stat = os.statvfs(disk)
    left = stat.f_bavail * stat.f_frsize - but_bytes
    with (disk / "filler").open("wb") as file:
        file.write(b"\0" * left)


def is_quiet(disk: Path) -> bool:
    """Whether nobody writes there: the workers wait, and what they had to write is written."""

    def sizes() -> dict[Path, int]:
        return {path: path.stat().st_size for path in disk.rglob("*") if path.is_file()}

    with contextlib.suppress(FileNotFoundError):  # something was renamed meanwhile
        before = sizes()
        time.sleep(0.3)
        return sizes() == before
    return False


def test_training_goes_on_when_the_disk_is_full(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with (
        small_disk(run_dir / "events", 1 << 20) as events,
        small_disk(run_dir / "checkpoints", 1 << 20) as checkpoints,
    ):
        setup = Setup(epochs=30, wait={18: FULL}, checkpoint=str(checkpoints))
        folder = CheckpointFolder(checkpoints)
        with LiveJob(run_dir, setup) as job:
            job.await_step(17)
            until(lambda: folder.latest() is not None, "a checkpoint")
            # Else the file that is being written goes when the disk is full, and there is room again.
            until(lambda: is_quiet(checkpoints), "the end of the last checkpoint")
            fill(checkpoints)
            fill(events, but_bytes=_PAGE_BYTES)
            job.say(FULL)
            outcome = job.finish()
        assert outcome.exit_codes == [0, 0], report(outcome)
        first, second = (outcome.results[worker]["state"] for worker in (0, 1))
        assert all(torch.equal(first[name], second[name]) for name in first)
        latest = folder.latest()
        assert latest is not None
        manifest, contents = folder.read(latest)
        assert manifest.step == latest
        assert contents.tensors
        summary = summarize(read_run(run_dir))
        said = [warning for warning in summary.warnings if "the ledger is incomplete" in warning]
        assert any("of worker 0, steps" in warning for warning in said), summary.warnings
        lost = [event for event in outcome.of_kind(EventsLost) if event.source == "worker 0"]
        assert lost[-1].last_step == setup.steps - 1
    output = outcome.outputs[0]
    assert "is missing from" in output, "a checkpoint"
    assert "No space left on device" in output
    assert "events are missing from the log of worker 0" in output
