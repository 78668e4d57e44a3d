# SPDX-License-Identifier: Apache-2.0
"""The end of a worker is written under the number that the job knows it by."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gangline.engines.ending.worker_ends import WorkerEnds
from gangline.engines.job import Job
from gangline.engines.result import WorkerResult
from gangline.eventlog import EventWriter, log_path
from gangline.spec.config import RunConfig
from gangline.spec.event import Decision, WorkerEnded

if TYPE_CHECKING:
    from pathlib import Path

FAILED = WorkerResult(worker=0, exit_code=1, signal=None, traceback="Traceback\nValueError: no")


def ends(folder: Path, pid: int = os.getpid(), **fields: Any) -> WorkerEnds:
    return WorkerEnds(Job(config=RunConfig(run="r"), run_dir=folder, **fields), lambda place: pid)


def test_a_worker_that_joined_has_the_number_that_it_was_given(tmp_path: Path) -> None:
    for number in (4, 7):
        source = f"worker {number}"
        EventWriter(log_path(tmp_path, source), run="r", source=source).close()
    log_path(tmp_path, "worker 4").write_bytes(b"rubbish\n")
    event = ends(tmp_path, coordinator="ws://there:1").event_of(FAILED)
    assert isinstance(event, WorkerEnded)
    assert (event.worker, event.reason) == (7, "ValueError: no")
    assert event.output == "Traceback\nValueError: no"


def test_a_worker_that_never_had_a_number_is_told_of_in_words(tmp_path: Path) -> None:
    event = ends(tmp_path, coordinator="ws://there:1").event_of(FAILED)
    assert isinstance(event, Decision)
    assert event.what == "never_joined"
    assert event.reason.endswith("ended before it took part: ValueError: no")


def test_the_numbers_of_a_run_are_its_own(tmp_path: Path) -> None:
    event = ends(tmp_path).event_of(FAILED)
    assert isinstance(event, WorkerEnded)
    assert (event.worker, event.output) == (0, "")
