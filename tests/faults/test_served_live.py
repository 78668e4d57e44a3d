# SPDX-License-Identifier: Apache-2.0
"""Parameter servers whose coordinator is killed, and workers that stop, leave, come or die."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from elastic_bodies import Setup
from elastic_jobs import assert_replays
from live_jobs import LiveJob, report, until

from cases import quick_of
from gangline.spec.event import Decision, StepDone, UpdateApplied, UpdateVoided
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome

SETUP = Setup(samples=200, batch=12, epochs=3, allocation="balanced")
AGAIN = "the coordinator was started again"
MODES = ["asp", "bsp", "ssp(1)", "backup(1)", "asp(servers=2)", "asp(replicas=0)"]
MODES += ["asp(update=worker, push=4, fetch=2)"]


def assert_sound(outcome: Outcome, setup: Setup = SETUP, *, finishers: tuple[int, ...]) -> None:
    first = outcome.results[finishers[0]]["state"]
    for number in finishers:
        for name, value in outcome.results[number]["state"].items():
            is_shared = not name.startswith("opt")  # the optimizer's state is the servers'
            assert not is_shared or torch.equal(value, first[name]), f"{number} differs in {name}"
    assert_replays(outcome.folder)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)


def await_update(job: LiveJob, number: int) -> None:
    def has_come() -> bool:
        return any(isinstance(e, UpdateApplied) and e.number >= number for e in job.events())

    until(has_come, f"update {number}")


@pytest.mark.parametrize("mode", quick_of(MODES, quick=["ssp(1)"]))
def test_servers_go_on_when_the_coordinator_was_started_again(tmp_path: Path, mode: str) -> None:
    setup = replace(SETUP, wait=dict.fromkeys(range(12, 20), AGAIN), think_s=0.01)
    with LiveJob(tmp_path, setup, workers=3, sync=parse_sync(mode)) as job:
        await_update(job, 2)
        job.kill_coordinator()
        job.restart_coordinator()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_sound(outcome, finishers=(0, 1, 2))


@pytest.mark.parametrize("mode", quick_of(MODES, quick=["asp"]))
def test_a_stopped_server_is_given_up_and_comes_back(tmp_path: Path, mode: str) -> None:
    """Worker 0 serves; it comes back as a worker of another team."""
    setup = replace(SETUP, wait=dict.fromkeys(range(12, 30), "worker 0 joined"), think_s=0.01)
    with LiveJob(tmp_path, setup, workers=3, sync=parse_sync(mode)) as job:
        await_update(job, 2)
        victim = job.processes[0].pid
        os.kill(victim, signal.SIGSTOP)
        try:
            job.await_decision("team 0 is lost")
        finally:
            os.kill(victim, signal.SIGCONT)
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_sound(outcome, finishers=(0, 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_newcomer_trains_with_the_others(tmp_path: Path, mode: str) -> None:
    setup = replace(SETUP, wait=dict.fromkeys(range(12, 30), "worker 2 joined"), think_s=0.01)
    with LiveJob(tmp_path, setup, workers=2, is_joined=True, sync=parse_sync(mode)) as job:
        await_update(job, 2)
        job.join(replace(setup, wait={}))
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_sound(outcome, finishers=(0, 1, 2))


@pytest.mark.parametrize("mode", quick_of(MODES, quick=["asp"]))
def test_a_newcomer_holds_a_copy_when_a_server_has_died(tmp_path: Path, mode: str) -> None:
    """Two are left, of which one is new: it must hold what the dead one did."""
    joined = dict.fromkeys(range(12, 30), "worker 2 joined")
    goes_on = dict.fromkeys(range(32, 48), "test: go")
    setup = replace(SETUP, wait={**joined, **goes_on}, think_s=0.01)
    with LiveJob(tmp_path, setup, workers=2, is_joined=True, sync=parse_sync(mode)) as job:
        await_update(job, 2)
        job.join(replace(setup, wait=goes_on))
        until(
            lambda: any(isinstance(e, StepDone) and e.worker == 2 for e in job.events()), "a step"
        )
        os.kill(job.processes[0].pid, signal.SIGKILL)
        job.say("test: go")
        outcome = job.finish()
    assert outcome.exit_codes == [-signal.SIGKILL, 0, 0], report(outcome)
    assert_sound(outcome, finishers=(1, 2))


@pytest.mark.parametrize("mode", quick_of(MODES, quick=["asp"]))
def test_a_server_that_leaves_hands_its_shard_to_its_copy(tmp_path: Path, mode: str) -> None:
    setup = replace(SETUP, wait=dict.fromkeys(range(12, 20), "test: go"), think_s=0.01)
    with LiveJob(tmp_path, setup, workers=3, sync=parse_sync(mode)) as job:
        await_update(job, 2)
        os.kill(job.processes[0].pid, signal.SIGTERM)
        job.say("test: go")
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_sound(outcome, finishers=(1, 2))
    if "replicas=0" not in mode:
        assert not [one for one in outcome.of_kind(UpdateVoided) if one.clock < 0]


@pytest.mark.parametrize("mode", quick_of(MODES, quick=["bsp"]))
def test_a_server_and_its_copy_die_together(tmp_path: Path, mode: str) -> None:
    setup = replace(SETUP, think_s=0.02)
    with LiveJob(tmp_path, setup, workers=4, sync=parse_sync(mode)) as job:
        await_update(job, 3)
        found = re.search(
            r"shard 0 worker (\d)( \(copy: worker (\d)\))?", job.await_decision("held by").reason
        )
        assert found is not None
        victims = [int(one) for one in found.groups()[::2] if one is not None]
        for victim in victims:
            os.kill(job.processes[victim].pid, signal.SIGKILL)
        outcome = job.finish()
    codes = [-signal.SIGKILL if worker in victims else 0 for worker in range(4)]
    assert outcome.exit_codes == codes, report(outcome)
    assert_sound(outcome, finishers=tuple(w for w in range(4) if w not in victims))
    reasons = [one.reason for one in outcome.of_kind(Decision)]
    assert any("all go back to what worker" in reason for reason in reasons)
