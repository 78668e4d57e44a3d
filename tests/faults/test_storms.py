# SPDX-License-Identifier: Apache-2.0
"""Workers join and leave a `gangline run` until nobody is left whom it started, or nobody at all."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, TypeAlias

import pytest
from command_jobs import CommandJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Start: TypeAlias = Callable[..., CommandJob]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as jobs:
        yield lambda *flags, **more: jobs.enter_context(CommandJob(tmp_path, *flags, **more))


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("sync", ["full", "percentage(0.25)"])
def test_the_launcher_stays_while_others_train_its_job_to_the_end(start: Start, sync: str) -> None:
    job = start("--sync", sync, nodes=1)
    job.until(lambda: job.trainers() == (0,), "the first worker")
    joiner = job.join()
    job.until(lambda: job.trainers() == (0, 1), "the newcomer")
    job.leave(0)
    job.until(lambda: job.has_decided("await_others"), "the launcher to wait")
    (job.folder / "fast").touch()
    code, shown = job.end(job.launcher)
    assert code == 0, shown
    assert "all workers that were started here have ended; worker 1 goes on" in shown
    assert job.end(joiner)[0] == 0
    job.check_samples()


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_job_that_everybody_has_left_is_failed(start: Start) -> None:
    job = start()
    job.until(lambda: job.trainers() == (0, 1), "the workers")
    job.leave(1)
    job.leave(0)
    code, shown = job.end(job.launcher)
    assert code == 1, shown
    assert "the job is not trained to its end: worker 0, 1 left, and nobody is left" in shown


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_those_that_joined_end_when_the_launcher_ends_the_job(
    start: Start,
) -> None:
    job = start(nodes=1)
    job.until(lambda: job.trainers() == (0,), "the first worker")
    joiner = job.join()
    job.until(lambda: job.trainers() == (0, 1), "the newcomer")
    (job.folder / "fail").touch()
    code, shown = job.end(job.launcher)
    assert (code, "worker 0 failed: ValueError: as asked" in shown) == (1, True), shown
    began_s = time.monotonic()
    code, shown = job.end(joiner)
    assert code == 1
    assert "the job was ended where it had been started: worker 0: ValueError: as asked" in shown
    assert time.monotonic() - began_s < 30, "it did not wait for a coordinator that is gone"


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("sync", "seed"), [("full", 1), ("none", 2), ("percentage(0.25)", 3)])
def test_a_storm_is_survived(start: Start, sync: str, seed: int) -> None:
    rng = random.Random(seed)
    job = start("--sync", sync, nodes=3)
    job.until(lambda: len(job.trainers()) == 3, "the workers")
    for _ in range(4):
        job.join()
        time.sleep(rng.uniform(0.0, 1.5))
        trainers = job.trainers()
        if len(trainers) > 1:
            job.leave(rng.choice(trainers))
    heard: set[int] = set()
    job.until(lambda: heard.update(job.known()) or heard >= {3, 4, 5, 6}, "all that join")
    (job.folder / "fast").touch()
    code, shown = job.end(job.launcher)
    assert code == 0, shown
    for joiner in job.processes[1:]:
        code, shown = job.end(joiner)
        assert code == 0 or "the job is over" in shown, shown
    job.check_samples()
