# SPDX-License-Identifier: Apache-2.0
"""The coordinator is killed and started again: training goes on, and no view is issued twice."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from elastic_bodies import Setup
from live_jobs import LiveJob, assert_nothing_lost, report

from cases import quick_of
from gangline.coordinator.kept.records import AnyRecord, Published
from gangline.coordinator.server.journal import JOURNAL_NAME
from gangline.files.announcement import read_announcement
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from pathlib import Path


def published(folder: Path) -> list[Published]:
    lines = (folder / JOURNAL_NAME).read_bytes().splitlines()
    records: list[Any] = [msgspec.json.decode(line, type=AnyRecord) for line in lines]
    return [record for record in records if isinstance(record, Published)]


def assert_views_are_unique(folder: Path) -> None:
    numbers = [record.view.number for record in published(folder)]
    assert numbers == sorted(set(numbers)), "a view was issued twice"


def test_training_goes_on_while_the_coordinator_is_away(tmp_path: Path) -> None:
    setup = Setup(epochs=14)
    with LiveJob(tmp_path, setup) as job:
        job.await_step(5)
        job.kill_coordinator()
        outcome = job.finish()
        job.start_coordinator()  # only so that there is one to be reaped
    assert outcome.exit_codes == [0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1])


@pytest.mark.parametrize("at_step", quick_of([0, 40], quick=[40]))
def test_workers_come_back_when_the_coordinator_is_started_again(
    tmp_path: Path, at_step: int
) -> None:
    setup = Setup(epochs=14, wait={60: "the coordinator was started again"})
    with LiveJob(tmp_path, setup) as job:
        job.await_step(at_step)
        job.kill_coordinator()
        job.restart_coordinator()
        job.await_decision("the coordinator was started again")
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1])
    assert_views_are_unique(tmp_path)
    lost = [e for e in outcome.events if isinstance(e, Decision) and "go on" in e.reason]
    assert lost == [], "nobody was taken to be lost"


def test_a_fault_waits_for_the_coordinators_return(tmp_path: Path) -> None:
    setup = Setup(epochs=14, wait={60: "go on"})
    with LiveJob(tmp_path, setup, workers=3) as job:
        job.await_step(5)
        job.kill_coordinator()
        os.kill(job.processes[1].pid, signal.SIGKILL)
        job.processes[1].join()
        job.restart_coordinator()
        decision = job.await_decision("go on")
        outcome = job.finish()
    assert "worker 1" in decision.reason
    assert outcome.exit_codes == [0, -signal.SIGKILL, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 2])
    assert_views_are_unique(tmp_path)


def test_joined_workers_find_a_coordinator_that_comes_back_at_another_port(
    tmp_path: Path,
) -> None:
    setup = Setup(epochs=14, wait={60: "go on"})
    with LiveJob(tmp_path, setup, workers=3, is_joined=True) as job:
        job.await_step(5)
        before = read_announcement(tmp_path).url
        job.kill_coordinator()
        os.kill(job.processes[1].pid, signal.SIGKILL)
        job.processes[1].join()
        job.restart_coordinator()
        job.await_decision("go on")
        outcome = job.finish()
    assert read_announcement(tmp_path).url != before
    assert sorted(outcome.exit_codes) == [-signal.SIGKILL, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 2])


def test_workers_give_up_a_coordinator_that_never_comes_back(tmp_path: Path) -> None:
    setup = Setup(epochs=14, wait={60: "what nobody says"})
    with LiveJob(tmp_path, setup, workers=3, max_away_s=1.0) as job:
        job.await_step(5)
        job.kill_coordinator()
        os.kill(job.processes[1].pid, signal.SIGKILL)
        outcome = job.finish()
        job.start_coordinator()  # only so that there is one to be reaped
    assert outcome.exit_codes == [1, -signal.SIGKILL, 1], report(outcome)
    for worker in (0, 2):
        text = outcome.outputs[worker]
        assert f"the coordinator at {read_announcement(tmp_path).url} has not answered for" in text
        assert "start the coordinator again at the same address" in text


def test_a_newcomer_is_taken_in_by_a_coordinator_that_was_started_again(tmp_path: Path) -> None:
    setup = Setup(epochs=14, wait={60: "worker 2 joined"})
    with LiveJob(tmp_path, setup) as job:
        job.await_step(5)
        job.kill_coordinator()
        job.restart_coordinator()
        job.join()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1, 2])
    assert_views_are_unique(tmp_path)


def test_a_torn_journal_is_cut_with_a_warning(tmp_path: Path) -> None:
    setup = Setup(epochs=14, wait={60: "cannot be read"})
    with LiveJob(tmp_path, setup) as job:
        job.await_step(5)
        job.kill_coordinator()
        with (tmp_path / JOURNAL_NAME).open("ab") as journal:
            journal.write(b'{"kind":"published","view":{"numb')
        job.restart_coordinator()
        decision = job.await_decision("cannot be read")
        outcome = job.finish()
    assert decision.numbers["cut_bytes"] == 33
    assert outcome.exit_codes == [0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1])
    assert_views_are_unique(tmp_path)
