# SPDX-License-Identifier: Apache-2.0
"""Runs on a real Slurm of two nodes: submitted, by `srun` alone, of components, and of arrays."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from engine_jobs import SCRIPT, EngineJob, processes_of, words_of_processes
from slurm_cluster import Cluster, missing

from gangline.eventlog import read_run
from gangline.files.config import read_config
from gangline.files.tokens import read_token
from gangline.spec.event import RunEnded

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(240)
GANGLINE = (sys.executable, "-m", "gangline.cli.main")
COMMON = ("--everybody", "--listen", "127.0.0.1", "--run-dir", "run")


@pytest.fixture(scope="module")
def cluster(engines: Path) -> Iterator[Cluster]:
    if missing():
        pytest.skip(f"{missing()} is not installed: `make slurm` does that, as root")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons are started as root")
    folder = Path(tempfile.mkdtemp(prefix="gangline-slurm-"))  # short: a socket's name is in it
    folder.chmod(0o755)
    try:
        with Cluster(folder) as found:
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SlurmJob(EngineJob):
    """A run that was submitted; what is followed is the batch job, not the command."""

    def __init__(self, folder: Path, cluster: Cluster, *flags: str) -> None:
        command = [*GANGLINE, "run", "--on", "slurm", *COMMON, *flags, "train.py"]
        super().__init__(folder, command, cluster.environment)
        self.cluster = cluster
        code, shown = self.end()
        assert code == 0, shown
        match = re.search(r"submitted as job (\d+)", shown)
        assert match, shown
        self.job = match[1]

    def await_trainers(self, *workers: int) -> None:
        self.until(
            lambda: self.trainers() == workers,
            f"trainers {workers}: {self.said()}",
            is_followed=False,
        )

    def said(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.out"))

    def await_end(self) -> str:
        """The state in which the batch job ended."""
        done = self.until(self._ended, f"the end of job {self.job}", is_followed=False)
        return str(done)

    def _ended(self) -> str:
        shown = self.cluster.run("scontrol", "show", "job", self.job, check=False)
        found = re.search(r"JobState=(\w+)", shown)
        state = found[1] if found else "GONE"
        return "" if state in ("PENDING", "RUNNING", "COMPLETING") else state

    def __exit__(self, *exception: object) -> None:
        self.cluster.run("scancel", "--full", self.job, check=False)
        super().__exit__(*exception)


def test_a_run_is_submitted_survives_a_lost_worker_and_shows_no_secret(
    tmp_path: Path, cluster: Cluster
) -> None:
    with SlurmJob(tmp_path, cluster, "--slurm-nodes", "2") as job:
        job.await_trainers(0, 1)
        token = read_token(job.run_dir / "token")
        shown = cluster.run("scontrol", "show", "job", job.job)
        script = cluster.run("scontrol", "write", "batch_script", job.job, "-")
        assert "#SBATCH --nodes=2" in script
        seen = words_of_processes(tmp_path)
        assert "train.py" in seen
        assert not any(token in one for one in (shown, script, seen))
        assert not (job.run_dir / "invitation").exists()  # it came by the standard input of srun
        os.kill(job.pid_of(1), signal.SIGKILL)
        job.await_trainers(0)
        job.go_on()
        assert job.await_end() == "COMPLETED", job.said()
        job.check_samples()
        assert "trained by 1 workers" in job.said()


def test_a_task_that_is_killed_and_a_launcher_that_is_killed(
    tmp_path: Path, cluster: Cluster
) -> None:
    with SlurmJob(tmp_path, cluster, "--slurm-nodes", "2") as job:
        job.await_trainers(0, 1)
        agent = psutil.Process(job.pid_of(1)).parent()
        assert agent is not None
        agent.kill()
        job.await_trainers(0)
        launcher = next(one for one in processes_of(tmp_path) if "run" in one.cmdline()[1:5])
        launcher.kill()
        assert job.await_end() == "FAILED"
        job.until(lambda: not processes_of(tmp_path), "all processes to end", is_followed=False)


def test_the_components_of_a_heterogeneous_job_are_groups(tmp_path: Path, cluster: Cluster) -> None:
    components = [f"--slurm-component=--nodes=1 --ntasks={count}" for count in (1, 2)]
    with SlurmJob(tmp_path, cluster, *components) as job:
        job.await_trainers(0, 1, 2)
        structure = read_config(job.run_dir).exchange.tree
        assert str(structure) == "ring(ring(0*), ring(1*, 2))"
        job.go_on()
        assert job.await_end() == "COMPLETED", job.said()
        job.check_samples()


def test_the_elements_of_an_array_join_one_run(tmp_path: Path, cluster: Cluster) -> None:
    with SlurmJob(tmp_path, cluster, "--slurm-array", "0-1", "--slurm-nodes", "1") as job:
        job.until(lambda: len(job.trainers()) == 2, "two trainers", is_followed=False)
        job.go_on()
        job.until(
            lambda: "took part in the run" in job.said(), "the other element", is_followed=False
        )
        job.check_samples()
        assert "take_in_host" in job.decisions()


def test_a_warning_has_the_workers_leave_and_keep_a_checkpoint(
    tmp_path: Path, cluster: Cluster
) -> None:
    with SlurmJob(tmp_path, cluster, "--slurm-nodes", "2") as job:
        job.await_trainers(0, 1)
        # What Slurm does itself when the time is nearly over, which takes minutes.
        cluster.run("scancel", "--batch", "--signal=USR1", job.job)
        job.await_end()
        ends = [one for one in read_run(job.run_dir, notes=[]) if isinstance(one, RunEnded)]
        assert [one.status for one in ends] == ["interrupted"], job.said()
        assert "this machine is about to end" in ends[0].reason
        assert list((tmp_path / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_job_whose_time_is_over_goes_on_in_the_queue_again(
    tmp_path: Path, cluster: Cluster
) -> None:
    with SlurmJob(tmp_path, cluster, "--slurm-nodes", "2", "--slurm-requeue") as job:
        job.deadline_s += 300  # Slurm lets two minutes pass
        job.await_trainers(0, 1)
        cluster.run("scancel", "--batch", "--signal=USR1", job.job)
        job.until(lambda: (job.run_dir / "earlier").is_dir(), "the second time", is_followed=False)
        job.await_trainers(0, 1)
        job.go_on()
        assert job.await_end() == "COMPLETED", job.said()
        assert "trained by 2 workers" in job.said()


def test_a_script_that_srun_started_finds_its_peers_and_outlives_one(
    tmp_path: Path, cluster: Cluster
) -> None:
    with EngineJob(
        tmp_path,
        [
            "srun",
            "-N2",
            "-n2",
            "--chdir",
            str(tmp_path),
            sys.executable,
            str(tmp_path / "train.py"),
        ],
        {**cluster.environment, "HOME": str(tmp_path)},
    ) as job:

        def trainers() -> list[psutil.Process]:
            return [
                one
                for one in processes_of(tmp_path)
                if one.environ().get("SLURM_PROCID")
                and one.cmdline()[0] == sys.executable
                and one.cmdline()[1].endswith("train.py")
            ]

        checkpoints = tmp_path / "checkpoints"
        job.until(lambda: checkpoints.is_dir() and list(checkpoints.iterdir()), "an epoch's end")
        second = next(one for one in trainers() if one.environ()["SLURM_PROCID"] == "1")
        second.kill()
        job.go_on()
        code, shown = job.end()
        assert "trained by 1 workers" in shown
        assert code == 137, shown  # srun tells that a task was killed


def test_a_missing_controller_is_named(tmp_path: Path, cluster: Cluster) -> None:
    broken = tmp_path / "slurm.conf"
    text = Path(cluster.environment["SLURM_CONF"]).read_text()
    broken.write_text(re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", text) + "MessageTimeout=5\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    begun_s = time.monotonic()
    done = subprocess.run(
        [*GANGLINE, "run", "--on", "slurm", "train.py"],
        cwd=tmp_path,
        env={**cluster.environment, "SLURM_CONF": str(broken)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1, time.monotonic() - begun_s
    assert "is Slurm's controller there (`sinfo`)?" in done.stdout + done.stderr
