# SPDX-License-Identifier: Apache-2.0
"""A worker of real processes gets so slow that the others are better off without it, and comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import faultless, judge, key_of, regroups, run_with
from live_jobs import TOLERANCE, LiveJob, report
from networks import Network

from gangline.coordinator import losses
from gangline.coordinator.members.roster import Roster
from gangline.spec.event import Decision, StateHandedDown
from gangline.spec.faults import Fault

if TYPE_CHECKING:
    from gangline.control import ControlOptions


LOOKING = Setup(
    loop="looking",
    batch=4,
    epochs=5,
    allocation="balanced",
    think_s=0.02,
    wait={23: "members go on"},
)
SLOW = Fault(worker=0, kind="slow", step=4, to=1 / 15, for_steps=10_000)
"""Worker 0 is left out of this, and stays so."""


def set_exclusion_cost(monkeypatch: pytest.MonkeyPatch, cost_s: float) -> None:
    """Lets the coordinator, a thread of this process, think that regrouping costs next to nothing."""
    asked = Roster.options.fget
    assert asked is not None

    def options(roster: Roster) -> ControlOptions:
        return msgspec.structs.replace(asked(roster), exclusion_cost_s=cost_s)

    monkeypatch.setattr(Roster, "options", property(options))


@pytest.mark.slow
def test_a_worker_is_excluded_and_rejoins_when_it_is_slow_for_long_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_exclusion_cost(monkeypatch, 0.2)
    setup = Setup(
        batch=4, epochs=5, allocation="balanced", think_s=0.02, wait={46: "worker 3 joined"}
    )
    slow = Fault(worker=3, kind="slow", step=12, to=1 / 15, for_steps=26)
    outcome = run_with(tmp_path, setup, [slow], workers=4, everybody=False)
    judge(outcome, setup, [slow])
    decided = {event.what: event for event in outcome.of_kind(Decision)}
    excluded = decided["exclude"]
    assert "worker 3 needs" in excluded.reason
    assert "without it a step takes" in excluded.reason
    assert excluded.numbers["worker"] == 3
    assert excluded.numbers["without_s"] < 0.9 * excluded.numbers["with_s"]
    assert excluded.numbers["lost_steps"] >= 10
    back = decided["take_back"]
    assert "worker 3 shows" in back.reason
    assert back.t > excluded.t
    assert any(event.members == [0, 1, 2] for event in regroups(outcome)), "they went on without"
    last = setup.steps - 1
    assert last in outcome.steps_of(3), "it takes part in the last step"
    assert set(range(12)) <= outcome.steps_of(3), "and in those before it was slow"


def test_the_spares_go_on_when_the_only_member_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the state of when they were put out, and train again what came after it."""
    set_exclusion_cost(monkeypatch, 0.2)
    monkeypatch.setattr(losses, "ABSENT_S", 0.5)
    setup = Setup(
        batch=4, epochs=4, allocation="balanced", think_s=0.02, wait={40: "members go on"}
    )
    slow = Fault(worker=1, kind="slow", step=8, to=1 / 15, for_steps=17)
    killed = Fault(worker=0, kind="kill", step=42)
    outcome = run_with(tmp_path, setup, [slow, killed], workers=2, everybody=False)
    assert outcome.exit_codes == [-signal.SIGKILL, 0], report(outcome)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    said = [event.reason for event in outcome.of_kind(Decision)]
    assert any("no member is left: 1 spares go on" in reason for reason in said)
    for name, value in faultless(key_of(setup))["state"].items():
        torch.testing.assert_close(
            outcome.results[1]["state"][name], value, rtol=TOLERANCE, atol=TOLERANCE
        )


def test_a_worker_that_is_still_a_spare_ends_with_the_state_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_exclusion_cost(monkeypatch, 0.2)
    setup = Setup(
        batch=4, epochs=4, allocation="balanced", think_s=0.02, wait={46: "members go on"}
    )
    slow = Fault(worker=0, kind="slow", step=12, to=1 / 15, for_steps=10_000)
    outcome = run_with(tmp_path, setup, [slow], workers=4, everybody=False)
    assert outcome.exit_codes == [0, 0, 0, 0]
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    assert setup.steps - 1 not in outcome.steps_of(0), "it was not taken back"
    for worker in (0, 2, 3):
        for name, value in outcome.results[1]["state"].items():
            assert torch.equal(outcome.results[worker]["state"][name], value)


def test_a_spare_sees_what_the_others_see_after_every_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop goes through all epochs, with the parameters and the means of the others."""
    set_exclusion_cost(monkeypatch, 0.2)
    setup = LOOKING
    outcome = run_with(tmp_path, setup, [SLOW], workers=3, everybody=False)
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    assert setup.steps - 1 not in outcome.steps_of(0), "it was not taken back"
    # On a busy machine another one may be left out for a while, too.
    sent = [event for event in outcome.of_kind(StateHandedDown) if event.spare == 0]
    assert sent
    assert not any(event.error for event in sent)
    assert all(event.num_bytes > 1000 for event in sent)
    spare, member = outcome.results[0], outcome.results[1]
    for epoch in range(setup.epochs):
        seen, mains = zip(
            *(outcome.results[worker]["found_after"][epoch] for worker in range(3)), strict=True
        )
        assert seen[0] == seen[1] == seen[2], f"after epoch {epoch}"
        assert sum(mains) == 1, f"after epoch {epoch}"
    for name, value in member["state"].items():
        assert torch.equal(spare["state"][name], value)


@pytest.mark.slow
def test_a_spare_that_hangs_when_the_job_ends_does_not_fail_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_exclusion_cost(monkeypatch, 0.2)
    setup = replace(LOOKING, epochs=4, hangs_last=(0, 12.0))
    outcome = run_with(tmp_path, setup, [SLOW], workers=3, everybody=False)
    assert outcome.exit_codes[1:] == [0, 0], report(outcome)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_worker_with_a_slow_link_is_excluded_for_its_link(tmp_path: Path) -> None:
    """The exchange gets slower for all alike; how long each link was busy tells whose it is."""
    setup = Setup(loop="wide", epochs=10, allocation="balanced", think_s=0.03)
    with (
        Network(4) as network,
        LiveJob(tmp_path, setup, workers=4, network=network, everybody=False) as job,
    ):
        job.await_step(20)
        for namespace, interface in ((network.workers[2], "eth0"), (network.coordinator, "plug2")):
            limit = ["tbf", "rate", "150mbit", "burst", "64kb", "latency", "50ms"]
            tc = ["tc", "qdisc", "add", "dev", interface, "root", *limit]
            subprocess.run(["ip", "netns", "exec", namespace, *tc], check=True)
        excluded = job.await_decision("over the link of worker 2")
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0, 0], report(outcome)
    assert excluded.numbers["without_s"] < 0.5 * excluded.numbers["with_s"]
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
