# SPDX-License-Identifier: Apache-2.0
"""The numbers of the report, against runs whose numbers are known."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import START, SyntheticRun, step_done

from gangline.observe import draw_bars, summarize, to_trace, worker_bars
from gangline.observe.costs import WorkerCost, fit_cost, optimum_s
from gangline.observe.report import (
    decision_lines,
    exit_lines,
    headline,
    seconds,
    view_table,
    waiting_lines,
    worker_table,
)
from gangline.spec.event import (
    AnyEvent,
    Decision,
    EventsLost,
    PacingMeasured,
    RoundEnded,
    StepDone,
    ViewAdopted,
    WorkerEnded,
)


def test_throughput_is_samples_over_step_time() -> None:
    summary = summarize(SyntheticRun([0.01, 0.02]).run_steps(40, shares=[8, 8]).end().events)
    step_s = 8 * 0.02 + 0.01 + 0.005
    assert summary.throughput == pytest.approx(16 / step_s)
    assert summary.step_median_s == pytest.approx(step_s)
    assert summary.step_p90_s == pytest.approx(step_s)
    assert (summary.num_steps, summary.num_epochs, summary.samples) == (40, 1, 640)
    assert summary.wall_s == pytest.approx(40 * step_s)
    assert summary.status == "done"


def test_the_warm_up_is_left_out_and_named() -> None:
    run = SyntheticRun([0.01]).run_steps(3, shares=[100]).run_steps(37, shares=[8])
    summary = summarize(run.events)
    assert summary.skipped_steps == [0, 4]
    assert summary.num_steady_steps == 35
    assert summary.throughput == pytest.approx(8 / 0.095)


def test_nothing_is_left_out_when_the_run_is_very_short() -> None:
    summary = summarize(SyntheticRun([0.01]).run_steps(3, shares=[8]).events)
    assert summary.skipped_steps == []
    assert summary.num_steady_steps == 3


def test_efficiency_is_of_the_optimum_per_sample_when_shares_never_change() -> None:
    run = SyntheticRun([0.01, 0.02], exchange_s=0.0, update_s=0.0).run_steps(40, shares=[8, 8])
    summary = summarize(run.events)
    optimum = 16 / (1 / 0.01 + 1 / 0.02)
    assert summary.optimum_s == pytest.approx(optimum)
    assert summary.efficiency == pytest.approx(optimum / 0.16)
    assert summary.optimum_basis == "each worker's time per sample at the shares it had"


def test_efficiency_is_one_when_shares_fit_and_nothing_else_costs_time() -> None:
    run = SyntheticRun([0.01, 0.02], exchange_s=0.0, update_s=0.0).run_steps(40, shares=[16, 8])
    assert summarize(run.events).efficiency == pytest.approx(1.0)


def test_efficiency_knows_the_fixed_time_when_shares_changed() -> None:
    run = SyntheticRun([0.001, 0.01], fixed_s=0.05, exchange_s=0.0, update_s=0.0)
    run.run_steps(20, shares=[32, 32]).run_steps(20, shares=[58, 6])
    summary = summarize(run.events)
    assert [worker.fixed_s for worker in summary.workers] == pytest.approx([0.05, 0.05])
    assert [worker.per_sample_s for worker in summary.workers] == pytest.approx([0.001, 0.01])
    assert summary.optimum_basis == "each worker's fixed time and time per sample"
    assert summary.optimum_s == pytest.approx((64 + 50 + 5) / (1000 + 100))
    assert summary.views[0].efficiency == pytest.approx(summary.optimum_s / 0.37)
    assert summary.views[1].efficiency == pytest.approx(summary.optimum_s / 0.11)


def test_the_basis_says_so_when_only_some_fixed_times_are_known() -> None:
    run = SyntheticRun([0.001, 0.001, 0.01], fixed_s=0.05)
    run.run_steps(20, shares=[32, 32, 32]).run_steps(20, shares=[32, 55, 9])
    assert summarize(run.events).optimum_basis == (
        "each worker's time per sample, and the fixed time of 2 of 3"
    )


def test_waiting_is_charged_to_the_worker_that_was_ready_last() -> None:
    run = SyntheticRun([0.01, 0.02, 0.04]).run_steps(20, shares=[8, 8, 8])
    summary = summarize(run.events)
    first, second, third = summary.workers
    assert first.spent.wait_s == pytest.approx(15 * 0.24)
    assert second.spent.wait_s == pytest.approx(15 * 0.16)
    assert third.spent.wait_s == 0
    assert third.caused_wait_s == pytest.approx(15 * 0.40)
    assert (third.waited_for_steps, first.waited_for_steps) == (15, 0)
    assert first.caused_wait_s == 0
    assert summary.wait_s == pytest.approx(15 * 0.40)
    assert summary.wait_fraction == pytest.approx(0.40 / (3 * 0.335))


def test_each_part_of_a_workers_time_is_added_up() -> None:
    run = SyntheticRun([0.01, 0.02], data_s=0.003).run_steps(20, shares=[8, 4])
    spent = summarize(run.events).workers[0].spent
    assert spent.compute_s == pytest.approx(15 * 0.08)
    assert spent.data_s == pytest.approx(15 * 0.003)
    assert spent.exchange_s == pytest.approx(15 * 0.01)
    assert spent.update_s == pytest.approx(15 * 0.005)
    assert spent.other_s == pytest.approx(0, abs=1e-9)
    assert spent.total_s == pytest.approx(15 * 0.098)


def test_time_between_steps_counts_as_other_but_not_between_epochs() -> None:
    run = SyntheticRun([0.01])
    run.run_steps(4, shares=[8])
    run.now += 100.0
    run.run_steps(4, shares=[8], epoch=1)
    run.events += [step_done(t=run.now + 1.115, step=8, epoch=1, view=1)]
    summary = summarize(run.events)
    assert summary.workers[0].spent.other_s == pytest.approx(1.0)


def test_a_worker_alone_waits_for_nobody() -> None:
    summary = summarize(SyntheticRun([0.01]).run_steps(20, shares=[8]).events)
    assert summary.wait_s == 0
    assert summary.workers[0].waited_for_steps == 0
    assert waiting_lines(summary) == []


def test_a_share_of_zero_is_no_obstacle() -> None:
    run = SyntheticRun([0.01, 0.02], fixed_s=0.001).run_steps(20, shares=[8, 0])
    summary = summarize(run.events)
    assert summary.workers[1].per_sample_s is None
    assert summary.workers[1].share == 0
    assert summary.optimum_s == pytest.approx(0.081)
    assert summary.efficiency is not None


def test_nobody_computed_a_sample_and_the_summary_says_so() -> None:
    summary = summarize([step_done(samples=0, stop=0), step_done(samples=0, stop=0, step=1)])
    assert summary.efficiency is None
    assert summary.optimum_basis == "unknown: no worker computed a sample"
    assert summary.throughput == 0


def test_incomplete_steps_are_left_out_and_named_when_a_worker_died() -> None:
    run = SyntheticRun([0.01, 0.02]).run_steps(40, shares=[8, 8])
    events = [e for e in run.events if not (isinstance(e, StepDone) and e.worker and e.step > 29)]
    killed = WorkerEnded(t=run.now, worker=1, exit_code=None, signal="SIGKILL", reason="killed")
    summary = summarize([*events, killed])
    assert summary.num_steady_steps == 25
    assert summary.throughput == pytest.approx(16 / 0.175)
    assert summary.status == "unknown"
    assert summary.workers[1].exit == "SIGKILL: killed"
    assert summary.warnings == ["10 of 40 steps lack a worker's part (missing: worker 1)"]
    assert exit_lines(summary) == ["worker 1: SIGKILL: killed"]


def test_what_is_there_counts_when_a_worker_left_no_log() -> None:
    run = SyntheticRun([0.01, 0.02]).run_steps(8, shares=[8, 8])
    events = [e for e in run.events if not (isinstance(e, StepDone) and e.worker == 1)]
    summary = summarize(events)
    assert summary.num_steady_steps == 6
    assert summary.workers[1].num_steps == 0
    assert "8 of 8 steps" in summary.warnings[0]


def test_the_optimum_is_of_those_who_took_part_when_members_leave() -> None:
    run = SyntheticRun([0.01, 0.01], exchange_s=0.0, update_s=0.0).run_steps(20, shares=[8, 8])
    run.per_sample_s = [0.01]
    run.run_steps(20, shares=[16])
    summary = summarize(run.events)
    assert summary.views[1].efficiency == pytest.approx(1.0)


def test_samples_count_of_a_worker_that_did_not_live_to_tell_of_its_last_step() -> None:
    run = SyntheticRun([0.01, 0.01]).run_steps(3, shares=[6, 6])
    run.events.append(step_done(worker=0, step=3, samples=6, start=36, stop=48))
    assert summarize(run.events).samples == 48


def test_a_step_counts_once_when_it_was_tried_again() -> None:
    summary = summarize([step_done(samples=8), step_done(samples=6, stop=6, view=1)])
    assert (summary.num_steps, summary.samples) == (1, 6)


def test_a_step_counts_once_when_one_worker_had_made_it_before_it_was_put_out() -> None:
    run = SyntheticRun([0.01, 0.01]).run_steps(3, shares=[6, 6])
    alone = step_done(worker=0, step=3, view=0, samples=6, start=36, stop=48)
    run.events.append(alone)  # nobody else has the result of its exchange: they make the step again
    again = step_done(worker=1, step=3, view=1, samples=12, start=36, stop=48)
    run.events.append(again)
    summary = summarize(run.events)
    assert summary.samples == 48
    assert [worker.samples for worker in summary.workers] == [18, 30]


def test_impossible_steps_are_left_out_and_counted() -> None:
    bad = [step_done(compute_s=-1.0), step_done(samples=10**30), step_done(t=1e300)]
    summary = summarize([*bad, step_done(step=1)])
    assert summary.num_steps == 1
    assert summary.warnings == ["3 steps were left out: their times or samples are impossible"]


def test_lost_events_are_a_warning() -> None:
    lost = EventsLost(t=START, source="worker 1", count=7, reason="No space left on device")
    assert summarize([lost]).warnings == [
        "events are missing: 7 of worker 1 (No space left on device); the ledger is incomplete"
    ]


def test_the_report_says_which_steps_are_missing_and_that_its_totals_are_not_all() -> None:
    run = SyntheticRun([0.01]).run_steps(4, shares=[8])
    assert ", 32 samples in" in headline(summarize(run.events))[0]
    lost = EventsLost(
        t=run.now,
        source="worker 2",
        count=7,
        reason="No space left on device",
        first_step=4,
        last_step=9,
    )
    summary = summarize([*run.events, lost])
    assert ", at least 32 samples in" in headline(summary)[0]
    (warning,) = summary.warnings
    assert warning.startswith("events are missing: 7 of worker 2, steps 4 to 9 (No space")
    assert warning.endswith("the ledger is incomplete")


def test_pacing_says_asked_and_achieved_of_the_last_measurement() -> None:
    run = SyntheticRun([0.01]).run_steps(8, shares=[8])
    for achieved in (0.3, 0.21):
        run.events.append(
            PacingMeasured(
                t=run.now, worker=0, asked=0.2, achieved=achieved, cpu_s=1.0, slept_s=4.0
            )
        )
    summary = summarize(run.events)
    assert summary.workers[0].pacing is not None
    assert summary.workers[0].pacing.achieved == 0.21
    assert worker_table(summary).columns[-2:] == ("speed", "asked")
    assert worker_table(summary).rows[0][-2:] == ("0.21", "0.2")


def test_the_same_decision_of_all_workers_is_told_once() -> None:
    decision = Decision(t=START + 2, what="shares 9 7", reason="measured", numbers={"gain": 1.5})
    run = SyntheticRun([0.01]).run_steps(2, shares=[8])
    summary = summarize([*run.events, decision, msgspec.structs.replace(decision, t=START + 3)])
    assert decision_lines(summary) == ["after 2 s, shares 9 7: measured [gain 1.5]"]


def test_the_headline_says_that_there_is_nothing_when_no_step_was_finished() -> None:
    summary = summarize(SyntheticRun([0.01]).end("failed", "worker 0 failed").events)
    assert headline(summary) == [
        "run: failed (worker 0 failed), 1 worker, 0 steps, 0 epochs, 0 samples in 0 ms",
        "no step was finished: there is nothing to measure",
    ]


def test_an_empty_run_has_an_empty_summary() -> None:
    summary = summarize([])
    assert summary.workers == []
    assert summary.throughput is None
    assert summary.wall_s == 0


def test_the_shares_of_many_workers_are_abridged() -> None:
    view = ViewAdopted(t=START, view=0, step=0, members=list(range(10)), shares=[1] * 10, reason="")
    (row,) = view_table(summarize([view])).rows
    assert row == ("0", "0", "1 1 1 1 1 1 1 1 … (10 workers)", "-", "-", "-")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (600, "10.0 min"), (1.5, "1.5 s"), (0.0123, "12.3 ms"), (2e-5, "20 µs")],
)
def test_durations_are_written_with_a_fitting_unit(value: float | None, text: str) -> None:
    assert seconds(value) == text


COSTS = st.builds(
    WorkerCost,
    fixed_s=st.floats(0, 1),
    per_sample_s=st.floats(1e-4, 1),
    is_fitted=st.just(True),
)


@given(costs=st.lists(COSTS, min_size=1, max_size=6), samples=st.integers(1, 1000))
def test_the_optimum_is_the_least_time_in_which_all_samples_fit(
    costs: list[WorkerCost], samples: int
) -> None:
    def samples_within(time_s: float) -> float:
        return sum(max(0.0, time_s - cost.fixed_s) / cost.per_sample_s for cost in costs)

    best = optimum_s(costs, samples)
    assert samples_within(best * (1 + 1e-9)) >= samples * (1 - 1e-6)
    assert samples_within(best * (1 - 1e-6)) < samples


def test_the_optimum_of_nothing_is_no_time() -> None:
    assert optimum_s([WorkerCost(fixed_s=0.1, per_sample_s=0.1, is_fitted=True)], 0) == 0
    assert optimum_s([], 8) == 0


def test_a_fit_ignores_single_slow_steps() -> None:
    observations = [(n, 0.01 + 0.001 * n) for n in (8, 32) for _ in range(20)]
    cost = fit_cost([*observations, (32, 5.0), (8, 9.0)])
    assert cost is not None
    assert cost.is_fitted
    assert cost.compute_s(16) == pytest.approx(0.026)


@pytest.mark.parametrize(
    "observations",
    [
        pytest.param([(8, 0.8)] * 9, id="one size"),
        pytest.param([(8, 0.8)] * 9 + [(10, 1.0)] * 9, id="sizes too alike"),
        pytest.param([(8, 0.8)] * 9 + [(32, 3.2)] * 4, id="too few steps"),
        pytest.param([(8, 0.8)] * 9 + [(32, 0.8)] * 9, id="no slope"),
        pytest.param([(8, 0.8)] * 9 + [(32, 9.9)] * 9, id="negative fixed part"),
    ],
)
def test_a_fit_gives_the_time_per_sample_when_the_fixed_part_cannot_be_told(
    observations: list[tuple[int, float]],
) -> None:
    cost = fit_cost(observations)
    assert cost is not None
    assert not cost.is_fitted
    assert cost.fixed_s == 0


ANY_FLOAT = st.one_of(
    st.floats(0, 2), st.just(5e-324), st.floats(allow_nan=False, allow_infinity=False)
)
SMALL = st.integers(-1, 4)
STEPS = st.builds(
    StepDone,
    t=ANY_FLOAT,
    worker=SMALL,
    step=SMALL,
    epoch=SMALL,
    view=SMALL,
    samples=st.one_of(st.integers(0, 9), st.integers()),
    compute_s=ANY_FLOAT,
    data_s=ANY_FLOAT,
    exchange_s=ANY_FLOAT,
    update_s=ANY_FLOAT,
)
VIEWS = st.builds(
    ViewAdopted,
    t=ANY_FLOAT,
    view=SMALL,
    step=SMALL,
    members=st.lists(SMALL, max_size=3),
    shares=st.lists(SMALL, max_size=3),
    reason=st.text(max_size=3),
)
OTHERS = st.one_of(
    st.from_type(PacingMeasured), st.from_type(EventsLost), st.from_type(WorkerEnded)
)


@settings(max_examples=150)
@given(events=st.lists(st.one_of(STEPS, STEPS, VIEWS, OTHERS), max_size=25))
def test_every_part_of_the_report_survives_whatever_a_log_may_hold(
    events: list[AnyEvent],
) -> None:
    summary = summarize(events)
    headline(summary)
    worker_table(summary)
    view_table(summary)
    waiting_lines(summary)
    decision_lines(summary)
    exit_lines(summary)
    draw_bars(worker_bars(summary))
    msgspec.json.encode(summary)
    msgspec.json.encode(to_trace(events))


def test_teams_count_their_own_steps_and_train_at_the_same_time() -> None:
    fast = SyntheticRun([0.01]).run_steps(40, shares=[8]).end().events
    slow: list[AnyEvent] = []
    for event in SyntheticRun([0.04]).run_steps(20, shares=[8]).events:
        if isinstance(event, StepDone):
            slow.append(msgspec.structs.replace(event, team=1, worker=1))
        elif isinstance(event, ViewAdopted):
            slow.append(msgspec.structs.replace(event, team=1, members=[1]))
    rounds = [
        RoundEnded(
            t=START + number,
            number=number,
            epoch=0,
            is_committed=number != 1,
            is_whole=number == 2,
            offsets={"0": 8 * number, "1": 8},
            took_s=0.2,
            exchange_s=0.1,
            busy_s=0.0,
            drift=0.1,
            sent_bytes=1_000_000,
            interval_s=0.0,
            sync="flexible",
            reason="",
        )
        for number in range(3)
    ]
    summary = summarize([*fast, *slow, *rounds])
    assert summary.num_teams == 2
    slow_s = (20 - 5) * 0.335  # the first five steps of each team are its warm-up
    assert summary.throughput == pytest.approx(8 * (35 + 15) / slow_s)
    assert summary.samples == 60 * 8
    assert [(view.team, view.view) for view in summary.views] == [(0, 0), (1, 0)]
    (line,) = [one for one in headline(summary) if "teams" in one]
    assert line == (
        "2 teams over the run, held together by flexible: merged 2 times, 200 ms each in the "
        "background, 1 counted nothing; 2 MB between them. Steps are each team's own"
    )
    assert view_table(summary).columns[0] == "team"
    assert [row[0] for row in view_table(summary).rows] == ["0", "1"]


def test_throughput_counts_all_steps_where_nobody_was_in_all_of_them() -> None:
    events: list[AnyEvent] = []
    for event in SyntheticRun([0.01]).run_steps(40, shares=[8]).events:
        if isinstance(event, StepDone) and event.step >= 20:
            events.append(msgspec.structs.replace(event, worker=1))
        elif not isinstance(event, ViewAdopted):
            events.append(event)
    assert summarize(events).throughput == pytest.approx(8 / 0.095)


def test_teams_that_follow_each_other_do_not_train_at_the_same_time() -> None:
    events: list[AnyEvent] = []
    for event in SyntheticRun([0.01]).run_steps(40, shares=[8]).events:
        if isinstance(event, StepDone) and event.step >= 20:
            events.append(msgspec.structs.replace(event, team=1))
        elif not isinstance(event, ViewAdopted):
            events.append(event)
    assert summarize(events).throughput == pytest.approx(8 / 0.095)
