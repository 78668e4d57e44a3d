# SPDX-License-Identifier: Apache-2.0
"""What a launcher knows of workers that it did not start, and how long it waits for them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gangline.engines.beyond import ENDED_S, LOST_S, Beyond
from gangline.engines.job import Job
from gangline.eventlog import EventWriter, log_path
from gangline.protocol.lifeline import Standing
from gangline.spec.cluster import Cluster
from gangline.spec.config import RunConfig, SurvivalConfig
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from pathlib import Path


CONFIG = RunConfig(
    run="r",
    cluster=Cluster.of_speeds((1.0, 1.0)),
    survival=SurvivalConfig(respawn=True, max_respawns=1),
)


def beyond(folder: Path, standing: Standing | None, **fields: Any) -> tuple[Beyond, Any]:
    job = Job(config=CONFIG, run_dir=folder, **fields)
    told = SimpleNamespace(standing=standing, finished=frozenset())
    return Beyond(job, told), told  # type: ignore[arg-type]


def test_only_those_that_joined_are_awaited(tmp_path: Path) -> None:
    known, told = beyond(tmp_path, Standing(present=(0, 1, 2)))
    assert not known.is_awaited, "0 to 2 are the launcher's own"
    told.standing = Standing(present=(1, 3, 4))
    assert (known.others, known.is_awaited) == ((3, 4), True)
    told.standing = None
    assert known.is_awaited, "the coordinator is being started again"
    told.standing = Standing()
    assert not known.is_awaited
    assert known.explain() == "nobody is left who trains it"


@pytest.mark.parametrize(("is_finished", "limit_s"), [(False, LOST_S), (True, ENDED_S)])
def test_those_that_are_not_heard_of_are_given_up(
    tmp_path: Path, is_finished: bool, limit_s: float
) -> None:
    known, told = beyond(tmp_path, Standing(present=(3,), silent_s=limit_s - 0.1))
    told.finished = frozenset({0} if is_finished else ())
    assert known.is_awaited
    told.standing = Standing(present=(3,), silent_s=limit_s + 0.1)
    assert not known.is_awaited
    words = f"nothing was heard of worker 3, which joined it, for {limit_s:.0f} s"
    assert known.explain() == words


def test_whoever_left_has_said_so_in_its_log(tmp_path: Path) -> None:
    known, _ = beyond(tmp_path, None)
    for worker in (0, 1):
        path = log_path(tmp_path, f"worker {worker}")
        with EventWriter(path, run="r", source=f"worker {worker}") as log:
            for _ in range(1000):  # more than is looked through
                log.write(Decision(t=1.0, what="plan", reason="x" * 100, numbers={}))
            if worker == 1:
                log.write(Decision(t=time.time(), what="leave", reason="asked to", numbers={}))
    assert [known.has_left(worker) for worker in (0, 1, 2)] == [False, True, False]
    joined, _ = beyond(tmp_path, None, coordinator="ws://10.0.0.5:77")
    assert not joined.has_left(1), "of a job elsewhere, who left has done its part"


def test_the_launchers_own_workers_finish_a_job_only_by_ending_well(tmp_path: Path) -> None:
    known, told = beyond(tmp_path, Standing())
    told.finished = frozenset({0, 2})
    assert not known.is_finished, "they may have failed after they said goodbye"
    told.finished = frozenset({0, 3})
    assert known.is_finished
