# SPDX-License-Identifier: Apache-2.0
"""How many workers this machine's processors are worth: affinity, quotas, Slurm."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gangline.profiling import processors
from gangline.profiling.processors import usable_processors

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two packages of four processors, whose numbers alternate."""
    monkeypatch.setattr(processors, "_allowed", lambda: set(range(8)))
    for number in range(8):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{number % 2}\n")
    return tmp_path


def set_quota(root: Path, text: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    (root / "proc/self/cgroup").write_text("0::/\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_text(text)


def test_processors_of_one_package_are_neighbours(root: Path) -> None:
    found = usable_processors({}, root)
    assert found.numbers == (0, 2, 4, 6, 1, 3, 5, 7)
    assert found.packages == (0, 0, 0, 0, 1, 1, 1, 1)
    assert found.count == 8


@pytest.mark.parametrize(
    ("quota", "count"), [("300000 100000", 3), ("250000 100000", 3), ("max 100000", 8)]
)
def test_a_quota_counts(root: Path, quota: str, count: int) -> None:
    set_quota(root, quota)
    assert usable_processors({}, root).count == count


@pytest.mark.parametrize(("said", "count"), [("5", 5), ("64", 8), ("0", 8), ("2(x3)", 8), ("", 8)])
def test_a_slurm_job_counts(root: Path, said: str, count: int) -> None:
    assert usable_processors({"SLURM_CPUS_ON_NODE": said}, root).count == count


def test_only_processors_of_the_affinity_count(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_allowed", lambda: {3, 2})
    assert usable_processors({}, root).numbers == (2, 3)


def test_here_it_finds_what_the_system_says() -> None:
    found = usable_processors({})
    assert 1 <= found.count <= len(found.numbers)
    if hasattr(os, "sched_getaffinity"):
        assert set(found.numbers) == os.sched_getaffinity(0)
