# SPDX-License-Identifier: Apache-2.0
"""Which files a program needs on another machine: what git knows in its folder, and what is named."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gangline.launch.program import Program

MAX_BYTES = 100 << 20
MAX_FILES = 10_000
"""No more is sent: data sets are not brought this way."""


class Brought(NamedTuple):
    """One file that is sent."""

    name: str
    """Relative to the folder, with slashes."""
    path: Path
    is_executable: bool


def root_of(program: Program) -> Path:
    """The folder from which files are brought: the script's, or where a module is looked for."""
    return Path.cwd() if program.script is None else program.script.parent


def select_files(program: Program, include: Iterable[str] = ()) -> list[Brought]:
    """What git knows in the program's folder, the script itself, and what is named beside them.

    Links are left out: they may lead anywhere.
    """
    root = root_of(program)
    found = {*_tracked(root)}
    if program.script is not None:
        found.add(program.script)
    for pattern in include:
        found |= {*_named(root, pattern)}
    if not found:
        raise UsageError(
            f"nothing in {root} can be brought: git knows no files there; name the module's files by "
            "--include"
        )
    files = [
        Brought(path.relative_to(root).as_posix(), path, os.access(path, os.X_OK))
        for path in sorted(found)
        if path.is_file() and not path.is_symlink()
    ]
    _check_size(files, root)
    return files


def _tracked(root: Path) -> Iterator[Path]:
    try:
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return  # no git, or not a folder of it
    for name in listed.stdout.split(b"\0"):
        if name:
            yield root / os.fsdecode(name)


def _named(root: Path, pattern: str) -> Iterator[Path]:
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise UsageError(f"--include {pattern} must name something inside {root}, relative to it")
    matches = [root / pattern] if (root / pattern).exists() else sorted(root.glob(pattern))
    if not matches:
        raise UsageError(f"--include {pattern} names nothing in {root}")
    for match in matches:
        yield from match.rglob("*") if match.is_dir() else (match,)


def _check_size(files: list[Brought], root: Path) -> None:
    total = sum(file.path.stat().st_size for file in files)
    if len(files) > MAX_FILES or total > MAX_BYTES:
        raise UsageError(
            f"{len(files)} files of {total >> 20} MiB would be brought from {root}, and at most "
            f"{MAX_FILES} files of {MAX_BYTES >> 20} MiB are: put the script into a folder of its own, "
            "and data sets on the machines themselves"
        )
