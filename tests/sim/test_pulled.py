# SPDX-License-Identifier: Apache-2.0
"""Simulated workers that pull parts of each global batch."""

from __future__ import annotations

import msgspec
import pytest

from gangline.control import ControlOptions
from gangline.observe.ledger import read_ledger
from gangline.simulation import Course, Scenario, simulate
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.event import Regrouped, StepDone
from gangline.spec.faults import Fault, FaultPlan

PULLED = ("self-scheduled", "self-scheduled(GSS)", "balanced+stolen")


def run(allocation, *, speeds=(1.0, 1.0, 0.5, 0.5), steps=60, batch=256, course=None, **fields):
    nodes = tuple(SimulatedNode(name=f"n{i}", speed=speed) for i, speed in enumerate(speeds))
    fields = {"fixed_s": 0.0002, "per_sample_s": 0.001, "noise": 0.0, **fields}
    events = []
    result = simulate(
        Scenario(nodes=nodes, **fields),
        options=ControlOptions(global_batch=batch, allocation=allocation, may_exclude=False),
        steps=steps,
        seed=3,
        sink=events.append,
        course=course or Course(),
    )
    return result, events


@pytest.mark.parametrize("allocation", PULLED)
def test_all_parts_of_every_step_are_computed_once(allocation):
    _, events = run(allocation, course=Course(samples=1000))
    read_ledger(events).check(length=1000, epochs=15)
    done = [event for event in events if isinstance(event, StepDone)]
    assert all(event.parts for event in done if event.samples)
    assert max(len(event.parts) for event in done) > 2


@pytest.mark.parametrize("allocation", PULLED)
def test_who_is_twice_as_fast_computes_twice_as_much(allocation):
    result, events = run(allocation)
    last = {e.worker: e.samples for e in events if isinstance(e, StepDone) and e.step == 59}
    fast, slow = last[0] + last[1], last[2] + last[3]
    assert 1.6 < fast / slow < 2.4
    assert result.efficiency > 0.8, "by equal shares it would be 0.66"


def test_a_worker_that_becomes_slow_is_not_waited_for():
    """Shares follow after some steps; parts that are pulled do within the first one."""
    slow = FaultPlan(
        faults=tuple(
            Fault(worker=0, kind="slow", step=step, to=0.33, for_steps=4) for step in (20, 30, 40)
        )
    )
    found = {
        allocation: run(allocation, speeds=(1.0,) * 4, course=Course(faults=slow))[0].efficiency
        for allocation in ("balanced", "balanced+stolen(own=0.5)")
    }
    assert found["balanced+stolen(own=0.5)"] > found["balanced"] + 0.02


@pytest.mark.parametrize("allocation", PULLED)
def test_the_parts_of_a_worker_that_is_killed_are_computed_by_others(allocation):
    faults = FaultPlan(faults=(Fault(worker=1, kind="kill", step=7, where="part"),))
    result, events = run(allocation, course=Course(samples=1000, faults=faults))
    assert result.problem is None
    assert [fault.worker for fault in result.fired] == [1]
    assert any(isinstance(event, Regrouped) for event in events)
    read_ledger(events).check(length=1000, epochs=15)


def test_a_run_can_be_repeated():
    first, second = (run("self-scheduled", noise=0.3)[1] for _ in range(2))
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
