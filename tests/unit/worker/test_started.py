# SPDX-License-Identifier: Apache-2.0
"""Who started a process, by its variables alone; and how ranks without a launcher of ours meet."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from gangline.protocol.launch import LAUNCH_VARIABLE
from gangline.spec.errors import LaunchError, UsageError
from gangline.worker.environment import find_launch
from gangline.worker.started.by_gangline import ByGangline
from gangline.worker.started.parallel import ParallelWorker
from gangline.worker.started.ranks import Ranks, find_ranks
from gangline.worker.started.rendezvous import FileRendezvous, Meeting, agree
from gangline.worker.started.torchrun import TorchRun

if TYPE_CHECKING:
    from pathlib import Path

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-a-17@1",
}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
}
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
LAUNCH = '{"run":"r","run_dir":"d","worker":0,"workers":1,"token_file":"t"}'


def test_open_mpi_is_recognised() -> None:
    found = find_launch(OPEN_MPI)
    assert isinstance(found, ParallelWorker)
    assert (found.launcher, found.ranks) == ("mpirun", Ranks(1, 4, 1, 2))
    assert found.key == "prterun-a-17@1"
    assert not found.is_here


def test_the_mpich_family_is_recognised_by_who_started_all_of_them() -> None:
    found = find_launch(HYDRA)
    assert isinstance(found, ParallelWorker)
    assert (found.is_here, found.key) == (True, f"of-{os.getppid()}")


def test_a_step_of_slurm_is_recognised_and_the_script_of_a_batch_job_is_not() -> None:
    found = find_launch(STEP)
    assert isinstance(found, ParallelWorker)
    assert (found.launcher, found.ranks.rank, found.ranks.size) == ("srun", 1, 3)
    assert found.key == "slurm-7.0.0"
    script = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    assert find_launch(script) is None


def test_a_launcher_goes_before_those_that_it_was_started_by() -> None:
    assert isinstance(find_launch({**STEP, **TORCHRUN}), TorchRun)
    inner = find_launch({**STEP, **OPEN_MPI})
    assert isinstance(inner, ParallelWorker)
    assert inner.launcher == "mpirun"
    everything = {**STEP, **OPEN_MPI, **TORCHRUN, LAUNCH_VARIABLE: LAUNCH}
    assert isinstance(find_launch(everything), ByGangline)
    assert find_launch({"PATH": "/bin"}) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK is 4 and OMPI_COMM_WORLD_SIZE is 4"),
        ({"OMPI_COMM_WORLD_SIZE": "many"}, "OMPI_COMM_WORLD_SIZE must be a whole number"),
    ],
)
def test_ranks_that_cannot_be_are_refused(change: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_ranks({**OPEN_MPI, **change})


def test_one_rank_is_a_job_of_one() -> None:
    worker = ParallelWorker(launcher="srun", ranks=Ranks(0, 1), key="k", is_here=True)
    assert worker.place(timeout_s=1).find_coordinator is None


def test_several_machines_without_a_name_for_their_job_are_told_what_to_do() -> None:
    worker = ParallelWorker(launcher="mpirun", ranks=Ranks(1, 2), key="", is_here=False)
    with pytest.raises(
        LaunchError, match="install mpi4py, or start them by `gangline run --on mpi`"
    ):
        worker.place(timeout_s=1)


def test_ranks_meet_by_what_mpi_gives_to_all() -> None:
    meeting = b'{"url":"ws://10.0.0.1:7","token":"s"}'
    worker = ParallelWorker(
        launcher="mpirun",
        ranks=Ranks(1, 2),
        key="",
        is_here=False,
        find_share=lambda: lambda said: said or meeting,
    )
    place = worker.place(timeout_s=1)
    assert place.find_coordinator is not None
    assert (place.find_coordinator(), place.token) == ("ws://10.0.0.1:7", "s")
    assert (place.worker, place.workers, place.is_elastic) == (1, 2, True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"gangline-{os.getuid()}"


def test_ranks_of_one_machine_meet_in_a_file_that_is_theirs_alone(folder: Path) -> None:
    meeting = Meeting(url="ws://127.0.0.1:7", token="secret")

    def take_part(is_first: bool) -> Meeting:
        rendezvous = FileRendezvous("job", is_here=True)
        return agree(rendezvous, is_first=is_first, serve=lambda: meeting, timeout_s=20)

    with ThreadPoolExecutor() as threads:
        found = list(threads.map(take_part, [False, True, False]))
    assert found == [meeting] * 3
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    FileRendezvous("job", is_here=True).forget()
    assert not file.exists()


def test_what_an_earlier_job_left_is_not_taken_for_this_one(folder: Path) -> None:
    rendezvous = FileRendezvous("job", is_here=True)
    rendezvous.tell(Meeting(url="ws://127.0.0.1:7", token="old"))
    (file,) = folder.iterdir()
    long_ago = time.time() - 1e6
    os.utime(file, (long_ago, long_ago))
    with pytest.raises(LaunchError, match="has not said within 0 s where the coordinator is"):
        rendezvous.hear(timeout_s=0.2)


def test_half_a_file_is_waited_for(folder: Path) -> None:
    rendezvous = FileRendezvous("job", is_here=True)
    (folder / "job.json").write_text('{"url":')
    with pytest.raises(LaunchError, match="all workers must see that folder"):
        rendezvous.hear(timeout_s=0.2)


def test_a_folder_that_others_can_look_into_is_not_used(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(LaunchError, match="is not a folder of yours alone"):
        FileRendezvous("job", is_here=True)
