# SPDX-License-Identifier: Apache-2.0
"""Several workers: interrupted and resumed, by as many or by others, each sample counts once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from cases import quick_of
from gangline.eventlog import read_run
from gangline.spec.event import Decision, StepDone
from gangline.testing import WorkerError

sys.path.append(str(Path(__file__).parents[1] / "unit"))

from checkpoint_jobs import Outcome, Run, checkpoints, train

if TYPE_CHECKING:
    from gangline.testing import WorkerPool


def assert_same_end(one: Outcome, other: Outcome) -> None:
    for name, value in one.state.items():
        if name != "count":  # running statistics follow each worker's own batches
            torch.testing.assert_close(value, other.state[name], rtol=0, atol=1e-9)
    assert one.rate == other.rate


def samples_of(outcomes: list[Outcome]) -> Counter[tuple[int, int]]:
    """How often each sample of each epoch was used."""
    return Counter(
        (epoch, index) for outcome in outcomes for epoch, batch in outcome.used for index in batch
    )


@pytest.fixture(scope="module")
def whole() -> Outcome:
    """An uninterrupted run of one process."""
    before = torch.get_rng_state()
    outcome = train(Run(folder=None, batch=8, samples=32))
    torch.set_rng_state(before)
    return outcome


@pytest.mark.parametrize(
    ("stop_after", "first", "second"),  # in mid-epoch, and at its end
    quick_of(
        [(stop, *sizes) for stop in (3, 4) for sizes in ((2, 2), (2, 3), (3, 1), (1, 2))],
        quick=[(3, 1, 2), (3, 2, 3), (4, 3, 1)],
    ),
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    first: int,
    second: int,
    stop_after: int,
    worker_pool: WorkerPool,
    tmp_path: Path,
    whole: Outcome,
) -> None:
    run = Run(folder=tmp_path, every=1, batch=8, samples=32)
    before = worker_pool.run(train, first, args=(replace(run, stop_after=stop_after),))
    after = worker_pool.run(train, second, args=(replace(run, resume=True),))
    for outcome in after:
        assert_same_end(outcome, whole)
    used = samples_of(before) + samples_of(after)
    assert used == Counter((epoch, index) for epoch in range(3) for index in range(32))


@pytest.mark.parametrize(
    ("first", "second", "stop_after"),
    quick_of([(2, 3, 3), (2, 2, 1), (1, 2, 2)], quick=[(2, 3, 3)]),
)
def test_gradients_that_the_loop_carried_over_are_kept(
    first: int, second: int, stop_after: int, worker_pool: WorkerPool, tmp_path: Path
) -> None:
    run = Run(folder=None, every=1, batch=8, samples=32, zeroes=False)
    (whole,) = worker_pool.run(train, 1, args=(run,))
    run = replace(run, folder=tmp_path)
    worker_pool.run(train, first, args=(replace(run, stop_after=stop_after),))
    for outcome in worker_pool.run(train, second, args=(replace(run, resume=True),)):
        assert_same_end(outcome, whole)


def test_an_order_that_was_drawn_is_kept(worker_pool: WorkerPool, tmp_path: Path) -> None:
    run = Run(folder=tmp_path, every=1, batch=8, samples=32, order="drawn", epochs=2)
    before = worker_pool.run(train, 2, args=(replace(run, stop_after=2),))
    after = worker_pool.run(train, 3, args=(replace(run, resume=True),))
    used = samples_of(before) + samples_of(after)
    assert used == Counter((epoch, index) for epoch in range(2) for index in range(32))


def test_all_workers_say_why_when_the_checkpoint_is_of_another_job(
    worker_pool: WorkerPool, tmp_path: Path
) -> None:
    run = Run(folder=tmp_path, every=1, batch=8, samples=32, epochs=1)
    worker_pool.run(train, 2, args=(run,))
    with pytest.raises(WorkerError) as caught:
        worker_pool.run(train, 2, args=(replace(run, resume=True, batch=16),))
    assert sorted(caught.value.failures) == [0, 1]
    for failure in caught.value.failures.values():
        assert "MismatchError: this job differs from the checkpoint" in failure
        assert "in global batch: 16 instead of 8" in failure


def test_the_coordinator_agrees_and_says_so(worker_pool: WorkerPool, tmp_path: Path) -> None:
    run = Run(folder=tmp_path, every=2, batch=8, samples=32, epochs=1)
    worker_pool.run(train, 2, args=(run,))
    events = list(read_run(worker_pool.run_dir))
    written = [e for e in events if isinstance(e, Decision) and e.what == "checkpoint_written"]
    assert [event.numbers["step"] for event in written] == [2, 4]
    assert checkpoints(tmp_path) == ["step-000000002", "step-000000004"]
    assert (tmp_path / "latest").read_text() == "step-000000004\n"


SCRIPT = """
import os, signal, sys
sys.path[:0] = {path!r}
from pathlib import Path
import checkpoint_jobs as jobs
import gangline
stop = int(sys.argv[1])
jobs.train(jobs.Run(folder=Path("kept"), every=2, batch=8, samples=32, stop_after=stop or None))
if stop:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_flag_resumes_in_the_same_run_folder(tmp_path: Path) -> None:
    path = [str(Path(__file__).parents[1] / "unit")]
    (tmp_path / "train.py").write_text(SCRIPT.format(path=path))

    def run(*flags: str, stop: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gangline.cli.main", "run", "--json", "--run-dir", "run"]
        command.append("--everybody")
        return subprocess.run(
            [*command, *flags, "train.py", str(stop)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    assert run(stop=6).returncode != 0, "the worker was killed"
    ended = run("--resume", "--nodes", "2", stop=0)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "run" / "earlier" / "1" / "events").is_dir()
    events = list(read_run(tmp_path / "run"))
    (resumed,) = [e for e in events if isinstance(e, Decision) and e.what == "resumed"]
    assert resumed.numbers == {"step": 6, "epoch": 1, "start": 16}
    steps = sorted({event.step for event in events if isinstance(event, StepDone)})
    assert steps == list(range(6, 12))
