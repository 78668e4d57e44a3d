# SPDX-License-Identifier: Apache-2.0
"""The public test helpers: `run_workers` and `WorkerPool`."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from gangline.protocol.launch import Launch
from gangline.spec.errors import UsageError
from gangline.testing import WorkerError, WorkerPool, run_workers

if TYPE_CHECKING:
    from collections.abc import Iterator


def place() -> dict[str, object]:
    launch = Launch.from_environment(os.environ)
    assert launch is not None
    return {"pid": os.getpid(), "worker": launch.worker, "workers": launch.workers}


def told(extra: str) -> list[object]:
    launch = Launch.from_environment(os.environ)
    assert launch is not None
    config = launch.config
    told = [launch.speed, config.batch.shares, config.exchange.transport]
    return [*told, extra, os.environ.get("COLOUR")]


def fail_in(worker: int) -> None:
    mine = place()["worker"]
    sys.stdout.write(f"hello from {mine}\n")
    if mine == worker:
        raise ValueError("boom")


def hang_in(worker: int) -> None:
    if place()["worker"] == worker:
        sys.stdout.write("hanging\n")
        threading.Event().wait()


def die() -> None:
    os.kill(os.getpid(), 9)


def write_event_folder() -> None:
    launch = Launch.from_environment(os.environ)
    assert launch is not None
    (Path(launch.run_dir) / f"{launch.worker}.txt").write_text("here")


def add_tensors(size: int) -> object:
    import torch

    return torch.ones(size) * float(str(place()["worker"]))


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool() as pool:
        yield pool


def test_values_come_back_in_rank_order_from_fresh_processes() -> None:
    values = run_workers(place, 2)
    assert [value["worker"] for value in values] == [0, 1]
    assert {value["workers"] for value in values} == {2}
    pids = {value["pid"] for value in values}
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_tensors_come_back() -> None:
    import torch

    assert torch.equal(run_workers(add_tensors, 1, args=(3,))[0], torch.zeros(3))


def test_workers_are_told_what_the_test_asks(pool: WorkerPool) -> None:
    values = pool.run(
        told,
        2,
        args=("x",),
        speeds=[1.0, 0.5],
        shares=[3, 1],
        transport="gloo",
        env={"COLOUR": "red"},
    )
    assert values == [
        [1.0, (3.0, 1.0), "gloo", "x", "red"],
        [0.5, (3.0, 1.0), "gloo", "x", "red"],
    ]
    assert pool.run(told, 1, args=("y",)) == [[1.0, None, None, "y", None]]


def test_a_pool_uses_its_processes_again_for_any_number_of_workers(pool: WorkerPool) -> None:
    pids = [[value["pid"] for value in pool.run(place, count)] for count in (2, 1, 2)]
    assert pids[0] == pids[2]
    assert pids[1] == pids[0][:1]


def test_the_run_folder_is_kept_until_the_next_job(pool: WorkerPool) -> None:
    pool.run(write_event_folder, 2)
    first = pool.run_dir
    assert {"0.txt", "1.txt"} <= {path.name for path in first.iterdir()}
    pool.run(write_event_folder, 1)
    assert pool.run_dir != first
    assert not first.exists()


def test_a_failure_shows_every_workers_output_and_leaves_the_pool_usable(pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match="failed in worker 1") as caught:
        pool.run(fail_in, 2, args=(1,))
    message = str(caught.value)
    assert "--- worker 0 ---\nhello from 0\n" in message
    assert "hello from 1\nTraceback" in message
    assert "ValueError: boom" in caught.value.failures[1]
    pids = [value["pid"] for value in pool.run(place, 2)]
    assert len(pids) == 2


def test_a_worker_that_hangs_is_ended_at_the_deadline(pool: WorkerPool) -> None:
    before = [value["pid"] for value in pool.run(place, 2)]
    with pytest.raises(WorkerError, match="no answer in time from worker 0") as caught:
        pool.run(hang_in, 2, args=(0,), deadline_s=1)
    assert caught.value.outputs[0] == "hanging\n"
    assert not any(psutil.pid_exists(pid) for pid in before)
    assert len(pool.run(place, 2)) == 2


def test_a_worker_that_dies_is_named_with_its_signal(pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        pool.run(die, 1)
    assert len(pool.run(place, 1)) == 1


def test_a_function_that_nobody_can_import_is_refused(pool: WorkerPool) -> None:
    with pytest.raises(UsageError, match="make it a top-level function"):
        pool.run(lambda: 1, 1)


def test_speeds_for_another_number_of_workers_are_refused(pool: WorkerPool) -> None:
    with pytest.raises(UsageError, match="2 speeds for 3 workers"):
        pool.run(place, 3, speeds=[1.0, 0.5])
