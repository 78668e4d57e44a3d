# SPDX-License-Identifier: Apache-2.0
"""What is known of Slurm and MPI without them: scripts, allocations, launchers, options."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from gangline.engines.mpi.launcher import Family, MpiLauncher, find_launcher, identify
from gangline.engines.slurm.allocation import Allocation, find_allocation
from gangline.engines.slurm.commands import check_command
from gangline.engines.slurm.script import batch_script
from gangline.spec.config import RunConfig
from gangline.spec.engines.engine import EngineConfig
from gangline.spec.engines.mpi import MpiConfig
from gangline.spec.engines.slurm import SlurmConfig
from gangline.spec.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("said", "family", "version"),
    [
        ("mpirun (Open MPI) 5.0.11\n", Family.OPEN_MPI, (5, 0)),
        ("HYDRA build details:\n    Version:          4.1.2\n", Family.HYDRA, (4, 1)),
    ],
)
def test_a_launcher_is_known_by_its_version(
    said: str, family: Family, version: tuple[int, int]
) -> None:
    assert identify(said, "mpirun") == (family, version)


def test_launchers_that_are_missing_old_or_strange_are_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LaunchError, match="neither of Open MPI nor of MPICH"):
        identify("something else", "mpirun")
    with pytest.raises(LaunchError, match=r"there is no launcher nowhere.*pip install"):
        find_launcher("nowhere")
    old = tmp_path / "mpirun"
    old.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 1.10.7'\n")
    old.chmod(0o755)
    with pytest.raises(LaunchError, match=r"of Open MPI 1\.10, and it takes 4\.0"):
        find_launcher(str(old))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"sbatch is not found.*apt install slurm-client"):
        check_command("sbatch")


def test_launchers_are_told_to_outlive_their_ranks() -> None:
    asked = MpiConfig(processes=2, hostfile="hosts", arguments=("--x",))
    new = MpiLauncher("m", Family.OPEN_MPI, (5, 0)).command(asked, ("p",))
    assert new == ["m", "--with-ft", "ulfm", "-n", "2", "--hostfile", "hosts", "--x", "p"]
    hydra = MpiLauncher("m", Family.HYDRA, (4, 1)).command(asked, ("p",))
    assert hydra == ["m", "-disable-auto-cleanup", "-n", "2", "-f", "hosts", "--x", "p"]


def test_the_script_of_a_batch_job_is_a_script_and_holds_the_configuration() -> None:
    config = RunConfig(
        engine=EngineConfig(name="slurm"),
        slurm=SlurmConfig(components=("--nodes=1", "--nodes=2"), requeue=True, warning_s=60),
    )
    text = batch_script(config, ["a b.py", "$x"], name="a;b", run_dir=None, python="/py thon")
    assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0
    assert "#SBATCH --job-name=a_b\n" in text
    assert "#SBATCH --nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=2\n" in text
    assert "'/py thon' -m gangline.cli.main run" in text
    assert "'a b.py' '$x' &" in text
    assert "scontrol requeue" in text
    inner = json.loads(text.partition("<<'CONFIG'\n")[2].partition("\nCONFIG\n")[0])
    assert inner["survival"]["notices"] == ["sigterm"]
    assert inner["survival"]["notice_s"] == 55


def test_the_components_of_an_allocation_are_groups_of_ranks() -> None:
    found = find_allocation(
        {
            "SLURM_JOB_ID": "7",
            "SLURM_HET_SIZE": "2",
            "SLURM_NTASKS_HET_GROUP_0": "1",
            "SLURM_NTASKS_HET_GROUP_1": "2",
        }
    )
    assert found == Allocation(job="7", components=(1, 2))
    assert found.component_flags == ["--het-group=0,1"]
    assert str(found.structure([0, 1, 2])) == "ring(ring(0*), ring(1*, 2))"
    assert found.structure([1, 2]) is None
    assert find_allocation({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}) is None
    assert find_allocation({}) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": 0}, "slurm.nodes must be at least 1"),
        ({"array": "a"}, "slurm.array must be such as"),
        ({"warning_s": 1}, "slurm.warning_s must be 10 to 3600"),
        ({"options": ("gpu",)}, "is no option of sbatch"),
        ({"components": ("--nodes=1",), "array": "0-1"}, "cannot be given beside it"),
    ],
)
def test_what_cannot_be_asked_of_slurm_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SlurmConfig(**options)  # type: ignore[arg-type]


def test_options_of_another_engine_are_refused() -> None:
    config = RunConfig(engine=EngineConfig(name="slurm"), mpi=MpiConfig(processes=2))
    with pytest.raises(UsageError, match="the options of mpi mean nothing to the engine slurm"):
        config.check()
