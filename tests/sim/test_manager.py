# SPDX-License-Identifier: Apache-2.0
"""The runtime manager in simulated runs: who gets slower, who is put out, who comes back."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.control import ControlOptions
from gangline.control.detection import detector_named
from gangline.observe.ledger import read_ledger
from gangline.simulation import Course, Scenario, simulate
from gangline.simulation.scenario import SimulatedNode, Throttle
from gangline.spec.event import Decision
from gangline.spec.faults import Fault, FaultPlan

BATCH = 256


def slow(factor, *, first=100, last=100_000):
    return (Throttle(from_step=first, to_step=last, factor=factor),)


class Simulated:
    """A run of four workers, the last of which is in trouble."""

    def __init__(self, *, steps, throttles=(), link=(), seed=0, course=None, **fields):
        options = {
            name: fields.pop(name)
            for name in ("detector", "exclusion_cost_s", "global_batch")
            if name in fields
        }
        nodes = (
            SimulatedNode(name="well", workers=3),
            SimulatedNode(name="ill", throttles=throttles, link_throttles=link),
        )
        self.events = []
        self.result = simulate(
            Scenario(nodes=nodes, **{"exchange_s": 0.002, **fields}),
            options=ControlOptions(**{"global_batch": BATCH, **options}),
            steps=steps,
            seed=seed,
            sink=self.events.append,
            course=course,
        )

    def decided(self, what):
        return [one for one in self.events if isinstance(one, Decision) and one.what == what]

    @property
    def memberships(self):
        return [view.members for view in self.result.views]


@pytest.mark.parametrize("seed", range(3))
def test_the_share_of_a_worker_that_is_throttled_by_five_shrinks_and_it_stays(seed):
    run = Simulated(steps=300, throttles=slow(5.0, last=250), seed=seed)
    assert set(run.memberships) == {(0, 1, 2, 3)}
    assert len(run.decided("compute_trouble")) == 1
    assert min(view.shares[3] for view in run.result.views) < BATCH // 16
    assert run.result.views[-1].shares[3] > BATCH // 5, "and grows again"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("factor", [5.0, 30.0])
def test_a_worker_that_is_slow_for_ten_steps_loses_at_most_those(factor, seed):
    hit = Simulated(steps=400, throttles=slow(factor, last=110), seed=seed, exclusion_cost_s=0.0)
    assert set(hit.memberships) == {(0, 1, 2, 3)}
    well = Simulated(steps=400, seed=seed)
    usual_s = float(np.median([step.step_s for step in well.result.history]))
    lost_s = sum(step.step_s for step in hit.result.history) - sum(
        step.step_s for step in well.result.history
    )
    assert lost_s < 10 * factor * usual_s, "as if it had been waited for with its whole share"


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_is_ten_times_slower_for_good_is_still_used(seed):
    run = Simulated(steps=500, throttles=slow(10.0, first=0), seed=seed, global_batch=2048)
    assert set(run.memberships) == {(0, 1, 2, 3)}
    assert run.result.views[-1].shares[3] > 20


@pytest.mark.parametrize("name", ["robust", "paper-average", "paper-window"])
def test_a_worker_that_slows_the_others_down_is_excluded_and_rejoins_when_it_recovers(name):
    run = Simulated(
        steps=1500,
        throttles=slow(30.0, last=400),
        fixed_s=0.02,
        detector=detector_named(name),
    )
    assert (0, 1, 2) in run.memberships
    assert run.memberships[-1] == (0, 1, 2, 3)
    assert run.result.views[-1].shares[3] > BATCH // 5
    (excluded,), (back,) = run.decided("exclude"), run.decided("take_back")
    assert excluded.t < back.t
    assert excluded.numbers["without_s"] < 0.9 * excluded.numbers["with_s"]
    ledger = read_ledger(run.events)
    ledger.check(length=1500 * BATCH, epochs=1)
    assert run.result.problem is None


@pytest.mark.slow
def test_a_worker_that_never_recovers_is_tried_again_and_costs_little():
    run = Simulated(steps=3_000, throttles=slow(30.0), fixed_s=0.02, exclusion_cost_s=0.4)
    assert run.memberships[-1] in {(0, 1, 2), (0, 1, 2, 3)}
    assert len(run.decided("exclude")) == 2
    later = run.result.history[500:]
    usual_s = float(np.median([step.step_s for step in later]))
    assert float(np.mean([step.step_s for step in later])) < 1.1 * usual_s


def test_a_worker_with_a_bad_link_is_excluded_for_its_link_and_tried_again():
    run = Simulated(steps=1500, link=slow(20.0, last=500), exchange_s=0.02, exclusion_cost_s=1.0)
    assert run.decided("compute_trouble") == []
    assert len(run.decided("link_trouble")) >= 1
    assert "over the link of worker 3" in run.decided("exclude")[0].reason
    assert run.memberships[-1] == (0, 1, 2, 3)


def test_nothing_is_lost_when_a_worker_is_killed_while_another_is_a_spare():
    course = Course(faults=FaultPlan(faults=(Fault(worker=1, kind="kill", step=200),)))
    run = Simulated(steps=600, throttles=slow(30.0, last=350), fixed_s=0.02, course=course)
    assert (0, 2) in run.memberships
    assert run.memberships[-1] == (0, 2, 3)
    read_ledger(run.events).check(length=600 * BATCH, epochs=1)


def test_a_spare_that_is_killed_does_not_come_back():
    course = Course(faults=FaultPlan(faults=(Fault(worker=3, kind="kill", at_s=25.0),)))
    run = Simulated(steps=1200, throttles=slow(30.0, last=800), fixed_s=0.02, course=course)
    assert run.memberships[-1] == (0, 1, 2)
    assert run.decided("take_back") == []
    assert run.result.problem is None


def noise_hours(hours, *, seed, noise=0.13, detector="robust"):
    """Plain noise, with pauses, of workers that are unlike."""
    nodes = tuple(
        SimulatedNode(name=f"n{i}", speed=speed, pause_probability=0.002, pause_s=0.5)
        for i, speed in enumerate((1.0, 0.5, 0.2, 0.1))
    )
    scenario = Scenario(nodes=nodes, noise=noise, exchange_s=0.01, per_sample_s=0.0005)
    events = []
    step_s = 0.09
    simulate(
        scenario,
        options=ControlOptions(global_batch=BATCH, detector=detector_named(detector)),
        steps=int(hours * 3600 / step_s),
        seed=seed,
        sink=lambda event: events.append(event) if isinstance(event, Decision) else None,
    )
    return events


def test_nobody_is_excluded_for_plain_noise():
    events = noise_hours(0.05, seed=0)
    assert [one.reason for one in events if one.what == "exclude"] == []
    assert [one.reason for one in events if one.what.endswith("_trouble")] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("detector", ["robust", "paper-average"])
def test_nobody_is_excluded_in_hours_of_plain_noise(seed, detector):
    events = noise_hours(4.0, seed=seed, detector=detector)
    assert [one.reason for one in events if one.what == "exclude"] == []
