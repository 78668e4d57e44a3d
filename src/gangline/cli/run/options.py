# SPDX-License-Identifier: Apache-2.0
"""What the flags of `gangline run` mean, checked before anything is started."""

from __future__ import annotations

import math
import os
import time
import warnings
from contextlib import suppress
from pathlib import Path

import psutil

from gangline.files.announcement import Announcement, read_announcement
from gangline.files.tokens import OBSERVER_TOKEN, OPERATOR_TOKEN, WORKER_TOKEN
from gangline.protocol.launch import TRANSPORTS
from gangline.spec.errors import LaunchError, UsageError

RUNS_DIR = Path("runs")
_RUN_PARTS = ("events", "workers", WORKER_TOKEN, "coordinator.json")
_COORDINATOR_PARTS = (
    *("coordinator.log", "journal.jsonl", "tls", "tls.json"),
    *(OBSERVER_TOKEN, OPERATOR_TOKEN),
)


def parse_numbers(text: str, *, flag: str) -> list[float]:
    """The numbers of a list such as `1,0.5,0.2`."""
    numbers = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UsageError(
                f"{flag} {text}: {part.strip()!r} is not a number; "
                f"write numbers with commas between them, such as {flag} 1,0.5,0.2"
            )
        numbers.append(number)
    return numbers


def parse_shares(text: str | None, *, workers: int) -> tuple[float, ...] | None:
    """Each worker's part of the global batch, in any unit."""
    if text is None:
        return None
    shares = parse_numbers(text, flag="--shares")
    if len(shares) != workers:
        raise UsageError(
            f"--shares {text} has {len(shares)} shares for {workers} workers; give one per worker"
        )
    if min(shares) < 0 or sum(shares) == 0:
        raise UsageError(f"--shares {text}: no share may be below 0, and one must be above it")
    return tuple(shares)


def check_transport(transport: str | None) -> None:
    """Refuses a transport that does not exist."""
    if transport is not None and transport not in TRANSPORTS:
        raise UsageError(
            f"--transport {transport!r} is not known; choose one of: {', '.join(TRANSPORTS)}"
        )


def check_script(script: Path) -> None:
    """Refuses what python could not run, before several workers fail at it."""
    if script.is_dir():
        raise UsageError(f"{script} is a folder; give the python script in it")
    try:
        source = script.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"there is no script {script} (looked in {Path.cwd()})") from None
    except OSError as error:
        raise UsageError(f"cannot read the script {script}: {error.strerror}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, str(script), "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        raise UsageError(f"{script}{place} is not python: {error.msg}") from error


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
