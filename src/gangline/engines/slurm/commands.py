# SPDX-License-Identifier: Apache-2.0
"""Slurm's commands: whether they are there, and what they say."""

from __future__ import annotations

import re
import shutil
import subprocess

from gangline.spec.errors import LaunchError

_ASK_S = 60.0
_LEAST = (20, 11)
"""The first that calls the parts of a heterogeneous job as they are called here."""
_VERSION = re.compile(r"slurm\S* (\d+)\.(\d+)")


def check_command(name: str) -> str:
    """Where a command is. Raises LaunchError where it is not there, or too old."""
    path = shutil.which(name)
    if path is None:
        raise LaunchError(
            f"{name} is not found, which is a command of Slurm: run this on a login node of the "
            "cluster, or install it (`apt install slurm-client`)"
        )
    said = ask(path, "--version")
    match = _VERSION.search(said)
    version = (0, 0) if match is None else (int(match[1]), int(match[2]))
    if version < _LEAST:
        raise LaunchError(
            f"{path} is of {said.strip() or 'an unknown version'}, and it takes Slurm {_LEAST[0]}."
            f"{_LEAST[1]:02d} or newer"
        )
    return path


def ask(*command: str, given: str | None = None) -> str:
    """What a command answers. Raises LaunchError with its own words where it fails."""
    try:
        done = subprocess.run(
            command,
            input=given or "",
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise LaunchError(f"{command[0]}: {said}; is Slurm's controller there (`sinfo`)?")
    return done.stdout
