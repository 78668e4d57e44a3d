# SPDX-License-Identifier: Apache-2.0
"""A simulated run: its steps, its events, and that it can be repeated."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from gangline.control import ControlOptions
from gangline.coordinator.coordinator import Coordinator
from gangline.coordinator.inputs import Said, StepsReported
from gangline.simulation import Scenario, simulate
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision, RunEnded, RunStarted, StepDone, StepSummary, ViewAdopted

UNEVEN = (1.0, 0.5, 0.2, 0.1)


def cluster(speeds=UNEVEN, **fields):
    nodes = tuple(SimulatedNode(name=f"n{i}", speed=speed) for i, speed in enumerate(speeds))
    return Scenario(nodes=nodes, **fields)


def run(scenario=None, *, steps=40, seed=0, **options):
    events = []
    result = simulate(
        scenario or cluster(),
        options=ControlOptions(**{"global_batch": 256, **options}),
        steps=steps,
        seed=seed,
        sink=events.append,
    )
    return result, events


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def test_a_step_takes_its_slowest_worker_the_exchange_and_the_update():
    result, events = run(
        cluster(noise=0.0, exchange_s=0.01, update_s=0.002), steps=3, allocation="equal"
    )
    slowest = (0.002 + 0.0002 * 64) / 0.1
    for step in result.history:
        assert step.step_s == pytest.approx(slowest + 0.012)
        assert step.model_s == pytest.approx(slowest)
    assert result.wall_s == pytest.approx(3 * (slowest + 0.012))
    first = [event for event in of(StepDone, events) if event.step == 0]
    assert [event.worker for event in first] == [0, 1, 2, 3]
    for event in first:
        assert event.compute_s + event.exchange_s == pytest.approx(slowest + 0.01)


def test_the_log_reads_like_that_of_a_real_run():
    result, events = run()
    assert isinstance(events[0], RunStarted)
    assert events[0].speeds == list(UNEVEN)
    assert isinstance(events[-1], RunEnded)
    assert events[-1].wall_s == result.wall_s
    assert all(early.t <= late.t for early, late in pairwise(events))
    adopted = of(ViewAdopted, events)
    assert [view.view for view in adopted] == [view.number for view in result.views]
    assert len(adopted) >= 2
    assert len(of(Decision, events)) == len(adopted)
    for done in of(StepDone, events):
        in_effect = [view for view in adopted if view.step <= done.step][-1]
        assert done.view == in_effect.view
        assert done.samples == in_effect.shares[done.worker]


def test_a_view_takes_effect_after_the_lag():
    for lag in (1, 3):
        _, events = run(cluster(view_lag_steps=lag))
        decided = of(Decision, events)[1]
        adopted = of(ViewAdopted, events)[1]
        assert adopted.step == decided.numbers["step"] + lag


def test_a_view_published_at_the_end_is_never_adopted():
    result, events = run(steps=5)
    assert len(result.views) == 2
    assert len(of(ViewAdopted, events)) == 1


def test_a_run_repeats_itself_when_the_seed_is_the_same():
    first, second, other = run(), run(), run(seed=1)
    assert first[1] == second[1]
    assert first[1] != other[1]


def test_many_workers_are_logged_in_summary():
    result, events = run(cluster((1.0,) * 60 + (0.2,) * 40), steps=10, global_batch=6400)
    summaries = of(StepSummary, events)
    assert of(StepDone, events) == []
    assert [event.step for event in summaries] == list(range(10))
    first = summaries[0]
    assert (first.workers, first.samples) == (100, 6400)
    assert first.slowest >= 60
    assert first.least_compute_s < first.median_compute_s < first.greatest_compute_s
    assert result.history[0].step_s == first.greatest_compute_s


def test_workers_to_whom_nothing_happens_report_together(monkeypatch):
    given = Counter()
    handle = Coordinator.handle

    def count(self, one, now):
        given[type(one)] += 1
        return handle(self, one, now)

    monkeypatch.setattr(Coordinator, "handle", count)
    run(cluster((1.0,) * 100), steps=20, global_batch=6400)
    assert given[StepsReported] == 20
    assert given[Said] == 100, "that they are ready"


@pytest.mark.parametrize("allocation", ["equal", "fixed", "random", "kqv", "kqv-normalised"])
def test_every_allocation_can_be_simulated_and_none_beats_balanced(allocation):
    balanced, _ = run(steps=120)
    other, _ = run(steps=120, allocation=allocation)
    assert other.efficiency < balanced.efficiency
    assert len(other.views) == (1 if allocation in ("equal", "fixed") else 2)


def test_a_step_is_needed():
    with pytest.raises(UsageError, match="at least 1 step, not 0"):
        run(steps=0)


def test_no_sink_is_needed():
    result = simulate(cluster(), options=ControlOptions(global_batch=64), steps=2)
    assert len(result.history) == 2


def test_a_single_worker_takes_everything_for_ever():
    result, _ = run(cluster((0.3,)), steps=30)
    assert [view.shares for view in result.views] == [(256,)]
