# SPDX-License-Identifier: Apache-2.0
"""The control groups that this process is in: their limits, and whether quotas can be set.

Both versions are read, also where they are mixed: the version is that of the CPU controller. A
limit holds for all groups below it, so the least one on the way up to the root counts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


NO_MEMORY_LIMIT_BYTES = 2**60
"""Version 1 writes "no limit" as a number just under 2**63, by page size."""


class ControlGroups(msgspec.Struct, frozen=True, kw_only=True):
    """What the control groups say about this process."""

    version: int | None
    """1 or 2; None where there are none."""
    cpu_quota: float | None
    """Processors' worth of time that may be used; None is no limit."""
    memory_limit_bytes: int | None
    quota_writable: bool
    """Whether this process may make groups with CPU quotas of their own."""


class Controller(NamedTuple):
    """Where this process's group of one controller is."""

    version: int
    mount: Path
    group: Path
    """The folder of this process's group; below, or equal to, the mount."""

    def folders(self) -> Iterator[Path]:
        """This group's folder and those above it."""
        yield self.group
        if self.group != self.mount:
            for parent in self.group.parents:
                yield parent
                if parent == self.mount:
                    return


def inspect_cgroups(root: Path) -> ControlGroups:
    """Reads the limits from below `root`; what cannot be read is no limit."""
    cpu, memory = find_controller(root, "cpu"), find_controller(root, "memory")
    return ControlGroups(
        version=cpu.version if cpu else None,
        cpu_quota=min(_quotas(cpu), default=None) if cpu else None,
        memory_limit_bytes=min(_limits(memory), default=None) if memory else None,
        quota_writable=cpu is not None and _is_writable(cpu),
    )


def find_controller(root: Path, name: str) -> Controller | None:
    """Where a controller is: version 1 has a mount of its own for it, version 2 one for all."""
    mounts = [line.split() for line in _lines(root / "proc/self/mounts")]
    groups = [line.split(":", 2) for line in _lines(root / "proc/self/cgroup")]
    for _, point, kind, options in (fields[:4] for fields in mounts if len(fields) >= 4):
        if kind == "cgroup" and name in options.split(","):
            path = next((g[2] for g in groups if len(g) == 3 and name in g[1].split(",")), "/")
            return _controller(1, root / point.lstrip("/"), path)
    for _, point, kind in (fields[:3] for fields in mounts if len(fields) >= 3):
        if kind == "cgroup2":
            path = next((g[2] for g in groups if len(g) == 3 and g[0] == "0"), "/")
            return _controller(2, root / point.lstrip("/"), path)
    return None


def _controller(version: int, mount: Path, path: str) -> Controller:
    # In a container the path is often that of the host, and is not there: the mount is then ours.
    group = mount / path.lstrip("/")
    inside = ".." not in group.parts and group.is_dir()
    return Controller(version, mount, group if inside else mount)


def _quotas(cpu: Controller) -> Iterator[float]:
    for folder in cpu.folders():
        if cpu.version == 1:
            quota = _number(folder / "cpu.cfs_quota_us")
            period = _number(folder / "cpu.cfs_period_us")
        else:
            words = (*_lines(folder / "cpu.max"), "max")[0].split()
            quota, period = (_parse(word) for word in (*words, "max", "max")[:2])
        if quota is not None and period is not None and quota > 0 and period > 0:
            yield quota / period


def _limits(memory: Controller) -> Iterator[int]:
    name = "memory.limit_in_bytes" if memory.version == 1 else "memory.max"
    for folder in memory.folders():
        limit = _number(folder / name)
        if limit is not None and limit < NO_MEMORY_LIMIT_BYTES:
            yield limit


def _is_writable(cpu: Controller) -> bool:
    if cpu.version == 1:
        return os.access(cpu.group, os.W_OK)
    controllers = " ".join(_lines(cpu.group / "cgroup.controllers")).split()
    needed = (cpu.group, cpu.group / "cgroup.subtree_control")
    return "cpu" in controllers and all(os.access(path, os.W_OK) for path in needed)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return _parse(lines[0]) if lines else None


def _parse(word: str) -> int | None:
    try:
        return int(word)
    except ValueError:
        return None
