# SPDX-License-Identifier: Apache-2.0
"""CPU quotas: what is written where, what is refused, and what is cleaned up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.emulation.quotas import Quotas, remove_leftovers
from gangline.profiling.cgroups import find_controller
from gangline.spec.errors import UsageError


def test_version_2_gets_quota_and_period_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    top = tmp_path / f"gangline-{os.getpid()}"
    quotas = Quotas(tmp_path, version=2, speeds=[0.5, 0.01])
    # The kernel would put this file into the folder when it is made.
    original = Path.mkdir

    def mkdir(self: Path) -> None:
        original(self)
        (self / "cgroup.subtree_control").write_text("")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", mkdir)
        groups = quotas.__enter__()
    assert groups == [top / "0", top / "1"]
    assert [(group / "cpu.max").read_text() for group in groups] == ["10000 20000", "1000 100000"]
    assert (top / "cgroup.subtree_control").read_text() == "+cpu"


def test_version_1_gets_two_files(tmp_path: Path) -> None:
    (group,) = Quotas(tmp_path, version=1, speeds=[0.25]).__enter__()
    assert (group / "cpu.cfs_period_us").read_text() == "20000"
    assert (group / "cpu.cfs_quota_us").read_text() == "5000"


def test_a_group_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as found, Quotas(tmp_path / "none", version=1, speeds=[0.5]):
        pass
    message = str(found.value)
    assert "no CPU quotas can be set below" in message
    assert "leave out --quota, and workers pace themselves" in message


def test_the_groups_of_processes_that_are_no_more_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, own, other = (
        tmp_path / name for name in (f"gangline-{ended.pid}", f"gangline-{os.getpid()}", "gangline")
    )
    for folder in (left / "0", own, other):
        folder.mkdir(parents=True)
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([own, other])


def test_real_groups_are_there_as_long_as_they_are_needed() -> None:
    cpu = find_controller(Path("/"), "cpu")
    if cpu is None:
        pytest.skip("this system has no control groups")
    try:
        with Quotas(cpu.group, version=cpu.version, speeds=[0.5]) as (group,):
            assert (group / "cgroup.procs").exists()
    except UsageError as error:
        pytest.skip(str(error))
    assert not group.parent.exists()
