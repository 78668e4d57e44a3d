# SPDX-License-Identifier: Apache-2.0
"""Teams whose coordinator is killed, whose workers leave, or whose loops leave an epoch early."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from elastic_bodies import Setup
from elastic_jobs import run_with
from live_jobs import LiveJob, report, until

from gangline.spec.event import LeaseReturned, SamplesLeased
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome

SETUP = Setup(samples=200, batch=12, epochs=3, allocation="balanced")
AGAIN = "the coordinator was started again"


def assert_sound(outcome: Outcome, *, finishers: tuple[int, ...]) -> None:
    first = outcome.results[finishers[0]]["state"]
    for number in finishers:
        for name, value in outcome.results[number]["state"].items():
            assert torch.equal(value, first[name]), f"process {number} differs in {name}"
    outcome.ledger.check(length=SETUP.samples, epochs=SETUP.epochs)


def await_lease(job: LiveJob, number: int, *, team: int) -> None:
    """Waits until a team has been lent samples so often."""

    def has_come() -> bool:
        leases = [e for e in job.events() if isinstance(e, SamplesLeased) and e.team == team]
        return any(one.number >= number for one in leases)

    until(has_come, f"lease {number}")


@pytest.mark.parametrize(
    "mode",
    [
        "percentage(0.5)",
        pytest.param("none", marks=pytest.mark.slow),
        pytest.param("local(3)", marks=pytest.mark.slow),
    ],
)
def test_teams_go_on_when_the_coordinator_was_started_again(tmp_path: Path, mode: str) -> None:
    setup = replace(SETUP, wait={20: AGAIN})
    with LiveJob(tmp_path, setup, sync=parse_sync(mode)) as job:
        await_lease(job, 2, team=0)
        job.kill_coordinator()
        job.restart_coordinator()
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0], report(outcome)
    assert_sound(outcome, finishers=(0, 1))
    assert not outcome.of_kind(LeaseReturned)


def test_the_samples_of_a_team_that_leaves_are_used_by_others(tmp_path: Path) -> None:
    left = "all its workers have left"
    setup = replace(SETUP, wait={6: "test: go"})
    with LiveJob(tmp_path, setup, workers=3, sync=parse_sync("percentage(0.25)")) as job:
        await_lease(job, 1, team=1)
        os.kill(job.processes[1].pid, signal.SIGTERM)
        job.say("test: go")
        decision = job.await_decision(left)
        outcome = job.finish()
    assert "team 1 is lost" in decision.reason
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert outcome.results[1]["place"] == (2, 2)
    assert_sound(outcome, finishers=(0, 2))


def test_leaving_an_epoch_early_is_refused_with_what_to_do(tmp_path: Path) -> None:
    setup = replace(SETUP, loop="broken_off")
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync("none"))
    assert outcome.exit_codes == [1, 1]
    for text in outcome.outputs.values():
        assert "the loop asked for epoch 1 before the end of epoch 0" in text
        assert "or train with sync='full'" in text
