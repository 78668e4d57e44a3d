# SPDX-License-Identifier: Apache-2.0
"""How many processors this process may use, which they are, and which of them are near each other."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.profiling.cgroups import inspect_cgroups

if TYPE_CHECKING:
    from collections.abc import Mapping

SLURM_VARIABLE = "SLURM_CPUS_ON_NODE"


class Processors(msgspec.Struct, frozen=True, kw_only=True):
    """What this process may compute on."""

    numbers: tuple[int, ...]
    """Those that it may run on (affinity and cpusets), one package after the other."""
    packages: tuple[int, ...]
    """The package (socket) of each."""
    count: int
    """How many workers they are worth: fewer, where a quota or a Slurm job allows less."""


def usable_processors(
    environment: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> Processors:
    """Looks at the affinity, the control groups and Slurm. `root` is where `proc` and `sys` are."""
    allowed = _allowed()
    package_of = {number: _package(root, number) for number in allowed}
    numbers = tuple(sorted(allowed, key=lambda number: (package_of[number], number)))
    quota = inspect_cgroups(root).cpu_quota
    limits = [
        len(numbers),
        math.ceil(quota) if quota is not None else len(numbers),
        _slurm(environment) or len(numbers),
    ]
    return Processors(
        numbers=numbers,
        packages=tuple(package_of[number] for number in numbers),
        count=max(1, min(limits)),
    )


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _package(root: Path, number: int) -> int:
    """0 where the system does not say."""
    path = root / f"sys/devices/system/cpu/cpu{number}/topology/physical_package_id"
    try:
        return max(0, int(path.read_text()))
    except (OSError, ValueError):
        return 0


def _slurm(environment: Mapping[str, str]) -> int | None:
    text = environment.get(SLURM_VARIABLE, "")
    return int(text) if text.isdecimal() and int(text) > 0 else None
