# SPDX-License-Identifier: Apache-2.0
"""Faults in a simulated run: what each kind does to the group, and what the log says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gangline.control import ControlOptions
from gangline.observe.ledger import read_ledger
from gangline.simulation import Course, Outage, Scenario, SimulationResult, simulate
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision, EpochDone, FaultFired, Regrouped, RunEnded, StepSummary
from gangline.spec.faults import PLACES, Fault, FaultPlan

if TYPE_CHECKING:
    from gangline.spec.event import AnyEvent

STEPS = 40
BATCH = 32


def run(
    *faults: Fault,
    workers: int = 3,
    respawns: int = 0,
    steps: int = STEPS,
    outages: tuple[Outage, ...] = (),
    **fields: Any,
) -> tuple[SimulationResult, list[AnyEvent]]:
    """A job of two epochs with these faults in it."""
    events: list[AnyEvent] = []
    scenario = Scenario(
        nodes=(SimulatedNode(name="rack", workers=workers),), noise=0.0, fixed_s=0.05, **fields
    )
    result = simulate(
        scenario,
        options=ControlOptions(global_batch=BATCH, allocation="equal"),
        steps=steps,
        sink=events.append,
        course=Course(
            samples=BATCH * steps // 2,
            faults=FaultPlan(faults=faults),
            respawns=respawns,
            outages=outages,
        ),
    )
    return result, events


def of(kind: type, events: list[AnyEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def memberships(result: SimulationResult) -> list[tuple[int, ...]]:
    return [view.members for view in result.views]


def kill(worker: int, step: int, where: str | None = None) -> Fault:
    return Fault(worker=worker, kind="kill", step=step, where=where)


def hang(worker: int, step: int, for_s: float, where: str | None = None) -> Fault:
    return Fault(worker=worker, kind="hang", step=step, for_s=for_s, where=where)


@pytest.mark.parametrize("place", [place for place in PLACES if place != "regroup"])
def test_the_others_go_on_when_a_worker_is_killed(place: str) -> None:
    result, events = run(kill(1, 10, place))
    assert memberships(result) == [(0, 1, 2), (0, 2)]
    assert result.recoveries[0].lost == (1,)
    assert result.recoveries[0].took_s < 1.0
    read_ledger(events).check(length=BATCH * STEPS // 2, epochs=2)
    (fired,) = of(FaultFired, events)
    assert (fired.worker, fired.fault, fired.where) == (1, "kill", place)
    assert fired.step == (STEPS // 2 if place in ("end", "call") else 10)


def test_the_attempt_is_made_again_when_a_worker_dies_before_the_exchange() -> None:
    _, events = run(kill(1, 10, "backward"))
    assert {event.step for event in of(Regrouped, events)} == {10}
    assert {event.num_behind for event in of(Regrouped, events)} == {0}


def test_a_second_death_while_the_group_is_made_anew_is_survived() -> None:
    result, _ = run(kill(1, 10, "exchange"), kill(2, 10, "regroup"), workers=4)
    assert memberships(result)[-1] == (0, 3)
    assert len(result.history) == STEPS


def test_a_short_hang_only_makes_the_step_longer() -> None:
    result, events = run(hang(1, 10, 1.0))
    assert memberships(result) == [(0, 1, 2)]
    assert result.history[10].step_s == pytest.approx(result.history[9].step_s + 1.0)
    assert of(Regrouped, events) == []


def test_a_worker_that_hangs_is_put_out_and_is_back_when_it_wakes() -> None:
    result, events = run(hang(1, 5, 4.0), steps=200)
    assert memberships(result) == [(0, 1, 2), (0, 2), (0, 2, 1)]
    assert 2.0 < result.recoveries[0].took_s < 3.0
    assert "silent for more than 2.0 s" in result.views[1].reason
    back = [event for event in of(Regrouped, events) if event.view == 2]
    assert {event.num_behind for event in back} == {1}


def test_a_cut_line_is_nobodys_business_while_steps_are_made() -> None:
    result, events = run(Fault(worker=1, kind="cut", step=10, for_s=1.0))
    assert memberships(result) == [(0, 1, 2)]
    assert len(of(FaultFired, events)) == 1


def test_a_worker_that_is_cut_off_when_another_dies_is_put_out_and_comes_back() -> None:
    result, _ = run(Fault(worker=1, kind="cut", step=10, for_s=1.0), kill(2, 12))
    assert memberships(result) == [(0, 1, 2), (0,), (0, 1)]


def test_a_slow_worker_is_slow_for_as_long_as_asked() -> None:
    result, _ = run(Fault(worker=1, kind="slow", step=10, to=0.5, for_steps=3))
    usual = result.history[9].step_s
    times = [round(step.step_s / usual, 2) for step in result.history[9:14]]
    assert times == [1.0, 2.0, 2.0, 2.0, 1.0]


def test_a_killed_worker_is_replaced_when_asked_for() -> None:
    result, events = run(kill(1, 5), respawns=1, steps=200)
    assert memberships(result) == [(0, 1, 2), (0, 2), (0, 2, 3)]
    (respawn,) = [event for event in of(Decision, events) if event.what == "respawn"]
    assert respawn.reason == "worker 1 was killed: worker 3 takes its place"


def test_the_run_fails_when_nobody_is_left() -> None:
    result, events = run(kill(0, 10), kill(1, 10), kill(2, 10))
    assert result.problem == "no worker is left"
    assert len(result.history) == 10
    (ended,) = of(RunEnded, events)
    assert (ended.status, ended.reason) == ("failed", "no worker is left")


def test_a_fault_that_the_run_does_not_come_to_is_said() -> None:
    late = [kill(1, 5000), Fault(worker=2, kind="kill", at_s=1e6)]
    result, events = run(*late)
    assert result.unreached == tuple(late)
    assert result.fired == ()
    assert of(FaultFired, events) == []


def test_a_fault_at_a_time_happens_then() -> None:
    _, events = run(Fault(worker=2, kind="kill", at_s=0.5))
    (fired,) = of(FaultFired, events)
    assert (fired.t, fired.where) == (0.5, "any")


def test_epochs_end_for_everybody_who_is_there() -> None:
    _, events = run(kill(1, 30))
    ended = [(event.epoch, event.worker) for event in of(EpochDone, events)]
    assert ended == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)]


def test_nothing_is_lost_among_many_workers_that_are_logged_in_summary() -> None:
    result, events = run(kill(1, 5, "update"), hang(2, 10, 3.0), workers=100)
    assert of(StepSummary, events)
    assert len(result.recoveries) == 2
    read_ledger(events).check(length=BATCH * STEPS // 2, epochs=2)


def test_workers_in_step_train_on_while_the_coordinator_is_away() -> None:
    well, _ = run()
    result, events = run(outages=(Outage(0.3, 0.8),))
    assert result.history == well.history
    assert result.wall_s == well.wall_s
    assert [event.what for event in of(Decision, events)] == ["publish_view", "resume"]


def test_a_worker_that_dies_while_the_coordinator_is_away_is_put_out_when_it_is_back() -> None:
    result, events = run(kill(1, 10), outages=(Outage(0.3, 2.0),))
    assert memberships(result) == [(0, 1, 2), (0, 2)]
    assert result.recoveries[0].took_s > 1.0, "nobody could tell the others before"
    read_ledger(events).check(length=BATCH * STEPS // 2, epochs=2)


def test_a_run_with_faults_repeats_itself() -> None:
    faults = [kill(1, 10, "update"), hang(2, 20, 3.0, "between")]
    assert run(*faults)[1] == run(*faults)[1]


@pytest.mark.parametrize(
    ("course", "message"),
    [
        ({"samples": 0}, "an epoch has at least 1 sample, not 0"),
        ({"respawns": -1}, "started again 0 times or more, not -1"),
    ],
)
def test_a_course_that_makes_no_sense_is_refused(course: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Course(**course)


def test_a_plan_for_workers_that_do_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="kill of worker 3, and the job has 3 workers, 0 to 2"):
        run(kill(3, 1))
