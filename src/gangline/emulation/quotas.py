# SPDX-License-Identifier: Apache-2.0
"""CPU quotas: the kernel stops a worker that has used its part of a core, whatever it computes.

    with Quotas(folder, version=2, speeds=[0.5, 0.1]) as groups:        # one folder per worker

Unlike pacing, a quota also slows what a script does besides training, and the exchange. It lets a
worker run at full speed until its part of a period is used up, so that it computes in bursts.
Groups are named after the process that made them; those of processes that are no more are removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PERIOD_US = 20_000
"""Short beside a step, or the bursts would show in it; the kernel takes no quota below 1 ms."""
_LEAST_QUOTA_US = 1_000
_PREFIX = "gangline-"
_REMOVE_S = 2.0


class Quotas:
    """The control groups of one job; as a context manager it removes them."""

    def __init__(self, parent: Path, *, version: int, speeds: Sequence[float]) -> None:
        """`parent` is the group that this process is in."""
        self._parent = parent
        self._version = version
        self._speeds = speeds
        self._top = parent / f"{_PREFIX}{os.getpid()}"

    def __enter__(self) -> list[Path]:
        remove_leftovers(self._parent)
        try:
            return self._make()
        except OSError as error:
            self.__exit__()
            raise UsageError(
                f"no CPU quotas can be set below {self._parent} ({error.strerror}): this needs root, "
                "or a control group that is delegated to you (systemd-run --user --scope -p "
                "Delegate=yes gangline run …); or leave out --quota, and workers pace themselves"
            ) from error

    def __exit__(self, *exception: object) -> None:
        _remove(self._top)

    def _make(self) -> list[Path]:
        if self._version == 2:
            _give_cpu(self._parent)
        self._top.mkdir()
        if self._version == 2:
            _give_cpu(self._top)
        groups = []
        for worker, speed in enumerate(self._speeds):
            group = self._top / str(worker)
            group.mkdir()
            self._limit(group, speed)
            groups.append(group)
        return groups

    def _limit(self, group: Path, speed: float) -> None:
        quota = max(_LEAST_QUOTA_US, round(speed * _PERIOD_US))
        period = max(_PERIOD_US, round(quota / speed))
        if self._version == 2:
            _write(group / "cpu.max", f"{quota} {period}")
        else:
            _write(group / "cpu.cfs_period_us", str(period))
            _write(group / "cpu.cfs_quota_us", str(quota))


def remove_leftovers(parent: Path) -> None:
    """Removes the groups of processes that were killed before they could do so."""
    for folder in parent.glob(f"{_PREFIX}*"):
        match = re.fullmatch(rf"{_PREFIX}(\d+)", folder.name)
        if match and not Path("/proc", match[1]).exists():
            _remove(folder)


def _give_cpu(group: Path) -> None:
    """Lets the groups inside this one have quotas."""
    control = group / "cgroup.subtree_control"
    if "cpu" not in control.read_text(encoding="ascii").split():
        _write(control, "+cpu")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")


def _remove(top: Path) -> None:
    """A group can be removed when its last process is quite gone, which takes the kernel a moment."""
    deadline = time.monotonic() + _REMOVE_S
    while top.is_dir() and time.monotonic() < deadline:
        for folder in (*(path for path in top.iterdir() if path.is_dir()), top):
            with contextlib.suppress(OSError):
                folder.rmdir()
        if top.is_dir():
            time.sleep(0.01)
