# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: made, or used again by a run that goes on."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

from gangline.files.announcement import Announcement, read_announcement
from gangline.files.code import CONTENT_FILE, MANIFEST_FILE
from gangline.files.config import CONFIG_FILE
from gangline.files.invitations import INVITATIONS_FILE
from gangline.files.tokens import OBSERVER_TOKEN, OPERATOR_TOKEN, WORKER_TOKEN
from gangline.spec.errors import LaunchError, UsageError

RUNS_DIR = Path("runs")
_RUN_PARTS = ("events", "workers", WORKER_TOKEN, "coordinator.json")
_COORDINATOR_PARTS = (
    *("coordinator.log", "journal.jsonl", "tls", "tls.json", CONFIG_FILE),
    *(OBSERVER_TOKEN, OPERATOR_TOKEN, INVITATIONS_FILE, MANIFEST_FILE, CONTENT_FILE),
)


def make_run_dir(
    script: Path, *, name: str | None, run_dir: Path | None, resume: bool = False
) -> tuple[str, Path]:
    """Makes the folder of a new run; returns the run's name and the folder.

    A run that resumes may use the folder of the one before, whose log and output are put aside.
    """
    if name is not None and (not name or name in (".", "..") or "/" in name):
        raise UsageError(
            f"--name {name!r} cannot be the name of a folder; use letters, digits and dashes"
        )
    if run_dir is None and name is None:
        return _make_timestamped(script.stem)
    folder = run_dir or RUNS_DIR / str(name)
    if any(os.path.lexists(folder / part) for part in _RUN_PARTS):  # a link to nowhere, too
        if resume:
            _put_aside(folder)
            return name or folder.resolve().name, folder
        flag = "--run-dir" if run_dir is not None else "--name"
        raise UsageError(
            f"{folder} already holds a run, which would be mixed up with this one; "
            f"choose another {flag}, or remove that folder"
        )
    _make(folder)
    return name or folder.resolve().name, folder


def _put_aside(folder: Path) -> None:
    """Moves what an earlier run left into `earlier/N`, so that it is not mixed up with the next."""
    _refuse_if_running(folder)
    earlier = folder / "earlier"
    if earlier.is_symlink():
        raise UsageError(f"{earlier} is a link: what earlier runs left is kept in the run folder")
    _make(earlier)
    numbers = [int(path.name) for path in earlier.iterdir() if path.name.isdigit()]
    aside = earlier / str(max(numbers, default=0) + 1)
    _make(aside)
    for part in (*_RUN_PARTS, *_COORDINATOR_PARTS):
        if os.path.lexists(folder / part):
            (folder / part).rename(aside / part)


def _refuse_if_running(folder: Path) -> None:
    try:
        announcement = read_announcement(folder)
    except LaunchError:
        return
    announced_s = Announcement.path_in(folder).stat().st_mtime
    with suppress(psutil.NoSuchProcess):
        # A process that is younger than the announcement has only inherited the number.
        if psutil.Process(announcement.pid).create_time() <= announced_s:
            raise UsageError(
                f"the run in {folder} is still going on (its coordinator is process "
                f"{announcement.pid}): end it before you resume it, or choose another --run-dir"
            )


def _make_timestamped(stem: str) -> tuple[str, Path]:
    base = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    _make(RUNS_DIR)
    for attempt in range(1, 1000):
        name = base if attempt == 1 else f"{base}-{attempt}"
        try:
            (RUNS_DIR / name).mkdir()
        except FileExistsError:
            continue
        return name, RUNS_DIR / name
    raise UsageError(f"there are too many runs named {base} in {RUNS_DIR}; give a --name")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the run folder {folder}: {error.strerror}; choose another --run-dir"
        ) from error
