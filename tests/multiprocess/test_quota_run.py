# SPDX-License-Identifier: Apache-2.0
"""`gangline run --quota`: the kernel holds workers to their speeds, and they do not pace themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangline.cli.main import run_command
from gangline.emulation.quotas import Quotas
from gangline.profiling.cgroups import find_controller
from gangline.spec.errors import UsageError

SCRIPT = """\
import json, os
speed = json.loads(os.environ["GANGLINE_LAUNCH"])["speed"]
print(json.dumps([speed, open("/proc/self/cgroup").read()]))
"""


@pytest.fixture
def cpu() -> Path:
    """The control group that this process is in."""
    found = find_controller(Path("/"), "cpu")
    if found is None:
        pytest.skip("this system has no control groups")
    try:
        with Quotas(found.group, version=found.version, speeds=[0.5]):
            return found.group
    except UsageError as error:
        pytest.skip(str(error))


def test_each_worker_is_in_a_group_of_its_own_that_is_removed_afterwards(
    cpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    assert run_command(["run", "--speeds", "0.3,0.1", "--quota", "--run-dir", "r", "train.py"]) == 0
    for worker in (0, 1):
        log = (tmp_path / "r" / "workers" / f"{worker}.log").read_text()
        speed, groups = json.loads(log.splitlines()[-1])
        assert speed == 1.0
        (name,) = {
            line.rsplit("gangline-", 1)[1] for line in groups.splitlines() if "gangline-" in line
        }
        assert name.split("/")[1] == str(worker)
        assert not (cpu / f"gangline-{name.split('/')[0]}").exists()
