# SPDX-License-Identifier: Apache-2.0
"""A worker is cut off by the network: from its peers, from the coordinator, or from both."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from live_jobs import LiveJob, assert_nothing_lost, report
from networks import Network

from cases import quick_of
from gangline.spec.event import Decision, Regrouped
from gangline.spec.sync import parse_sync

CUT, HEALED = "the network is cut", "the network has healed"


def test_the_others_go_on_when_a_worker_is_cut_from_its_peers_and_it_is_back_when_that_heals(
    tmp_path: Path,
) -> None:
    setup = Setup(epochs=20, wait={18: CUT, 42: "worker 2 joined"})
    with Network(3) as network, LiveJob(tmp_path, setup, workers=3, network=network) as job:
        job.await_step(17)
        network.cut(2, peers=True)
        job.say(CUT)
        put_out = job.await_decision("worker 2 cut from its peers, 2 reach each other")
        job.await_step(41)
        network.heal(2, peers=True)
        job.say(HEALED)
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1, 2])
    assert put_out.reason.endswith("2 of 3 members go on")
    said = [e.reason for e in outcome.of_kind(Decision)]
    (joined,) = [n for n, reason in enumerate(said) if "worker 2 joined" in reason]
    assert joined > said.index(HEALED), "it was not taken in before it could reach the others"
    assert setup.steps - 1 in outcome.steps_of(2)


def test_a_worker_is_taken_for_hung_when_it_is_cut_from_everybody(tmp_path: Path) -> None:
    setup = Setup(epochs=20, wait={18: CUT, 42: "worker 2 joined"})
    with Network(3) as network, LiveJob(tmp_path, setup, workers=3, network=network) as job:
        job.await_step(17)
        network.cut(2, peers=True, coordinator=True)
        job.say(CUT)
        put_out = job.await_decision("worker 2 silent for more than")
        job.await_step(41)
        network.heal(2, peers=True, coordinator=True)
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1, 2])
    assert put_out.reason.endswith("2 of 3 members go on")
    assert setup.steps - 1 in outcome.steps_of(2)


def test_training_goes_on_when_a_worker_is_cut_from_the_coordinator(tmp_path: Path) -> None:
    """When that has healed, it hears of the coordinator again: here, that another one leaves."""
    setup = Setup(epochs=20, wait={18: CUT, 90: HEALED, 108: "worker 0 left"})
    with Network(3) as network, LiveJob(tmp_path, setup, workers=3, network=network) as job:
        job.await_step(17)
        network.cut(2, coordinator=True)
        job.say(CUT)
        job.await_step(89)
        network.heal(2, coordinator=True)
        job.say(HEALED)
        os.kill(job.processes[0].pid, signal.SIGTERM)
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 0], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[1, 2])
    assert [event.members for event in outcome.of_kind(Regrouped)] == [[1, 2], [1, 2]]
    assert setup.steps - 1 in outcome.steps_of(2)


@pytest.mark.parametrize("sync", quick_of(["full", "none"], quick=["full"]))
def test_the_others_go_on_when_two_workers_do_not_reach_each_other(
    tmp_path: Path, sync: str
) -> None:
    """In step, one of the two is put out; teams are merged again when one has entered another."""
    setup = Setup(epochs=12, wait={18: CUT}, think_s=0.02)
    with (
        Network(3) as network,
        LiveJob(tmp_path, setup, workers=3, network=network, sync=parse_sync(sync)) as job,
    ):
        job.await_step(12)
        network.drop_between(1, 2)
        job.say(CUT)
        lost = "worker 2 cut from its peers" if sync == "full" else "team 2 is lost: its leader"
        job.await_decision(lost)
        outcome = job.finish()
    assert outcome.exit_codes[:2] == [0, 0], report(outcome)
    if sync == "full":
        assert "LeftBehindError" in outcome.outputs[2]
        assert_nothing_lost(outcome, setup, finishers=[0, 1])
    else:
        assert outcome.exit_codes[2] == 0, report(outcome)
        outcome.ledger.check(length=setup.samples, epochs=setup.epochs)


@pytest.mark.slow
def test_a_worker_whose_machine_is_cut_off_for_good_ends_by_itself(tmp_path: Path) -> None:
    setup = Setup(epochs=20, wait={18: CUT}, timeout_s=14.0)
    with Network(3) as network, LiveJob(tmp_path, setup, workers=3, network=network) as job:
        job.await_step(17)
        network.cut(2, peers=True, coordinator=True)
        job.say(CUT)
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 1], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[0, 1])
    said = "LeftBehindError: this worker has reached neither the coordinator nor the other workers"
    assert said in outcome.outputs[2]
