# SPDX-License-Identifier: Apache-2.0
"""Folding a run's events for its page: the same numbers as the report's, in bounded room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import START, SyntheticRun, step_done

from gangline.observe import summarize
from gangline.observe.page.accounts import Accounts
from gangline.observe.page.cells import Cells
from gangline.observe.page.detail import Detail
from gangline.observe.page.fold import ReportTimeoutError, fold_events
from gangline.observe.page.stepping import Stepper
from gangline.observe.page.thinned import Thinned
from gangline.observe.pauses import Pauses
from gangline.observe.timeline import assemble_step
from gangline.spec.errors import UsageError
from gangline.spec.event import (
    Decision,
    Logged,
    Regrouped,
    StepsDone,
    StepSummary,
    UnitsExchanged,
    ViewAdopted,
)

if TYPE_CHECKING:
    from gangline.observe.page.fold import Fold


def uneven_run() -> SyntheticRun:
    run = SyntheticRun([0.001, 0.002, 0.004], data_s=0.003)
    run.run_steps(30, shares=[20, 20, 20]).run_steps(60, shares=[34, 17, 9], epoch=1)
    return run.end()


def view(members: list[int], *, number: int = 0, t: float = START) -> ViewAdopted:
    return ViewAdopted(
        t=t, view=number, step=0, members=members, shares=[8] * len(members), reason=""
    )


def test_it_agrees_with_the_summary() -> None:
    events = uneven_run().events
    summary, fold = summarize(events), fold_events(events)
    pace = fold.pace()
    assert fold.totals.num_steps == summary.num_steps
    assert fold.used.samples == summary.samples
    assert pace.num_steps == summary.num_steady_steps
    assert pace.throughput == pytest.approx(summary.throughput)
    assert pace.efficiency == pytest.approx(summary.efficiency, rel=0.01)


def test_time_is_neither_lost_nor_doubled() -> None:
    fold = fold_events(uneven_run().events)
    by_cells = fold.spans.sums.sum(axis=1)
    assert by_cells == pytest.approx(fold.totals.spent[: len(by_cells)], rel=1e-3, abs=1e-6)
    assert fold.work.sums[:, :, 0].sum() == pytest.approx(fold.used.samples, rel=1e-4)


def test_who_is_last_is_charged_with_the_waiting() -> None:
    run = SyntheticRun([0.001, 0.003]).run_steps(50, shares=[10, 10]).end()
    accounts = Accounts(fold_events(run.events))
    assert accounts.caused_waits == pytest.approx({1: 50 * 0.02})
    assert accounts.spent_s(0, "wait") == pytest.approx(50 * 0.02)
    assert accounts.spent_s(1, "wait") == pytest.approx(0.0)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2000), st.floats(0, 1e5), st.floats(0, 1e4), st.floats(0.001, 100)
        ),
        min_size=1,
        max_size=30,
    )
)
def test_cells_keep_their_sums_and_their_room(spans: list[tuple[int, float, float, float]]) -> None:
    cells = Cells(1, most_cells=1 << 12, most_bins=256, most_rows=16)
    for worker, begin, length, amount in spans:
        one = np.array([worker]), np.array([0]), np.array([begin]), np.array([begin + length])
        cells.add(*one, np.array([amount]))
    total = sum(amount for *_, amount in spans)
    assert cells.sums.sum() == pytest.approx(total, rel=1e-3)
    assert cells.sums.size <= 1 << 12
    assert len(cells.sums) == max(worker for worker, *_ in spans) // cells.block + 1


def test_a_span_is_spread_over_its_time() -> None:
    cells = Cells(1, most_cells=1 << 10, most_bins=256)
    one = np.array([0]), np.array([0])
    cells.add(*one, np.array([0.0005]), np.array([0.003]), np.array([5.0]))
    assert cells.sums[0, :4, 0] == pytest.approx([1.0, 2.0, 2.0, 0.0])


def test_a_thinned_series_keeps_its_means() -> None:
    series = Thinned(1, most=8)
    for place in range(100):
        series.add(float(place), [float(place)], weight=2.0)
    moments, weights, values = series.columns()
    assert 4 <= len(moments) <= 8
    assert moments[-1] == 99
    assert weights.sum() == 200
    assert (weights * values).sum() == pytest.approx(2 * sum(range(100)))


def test_the_first_steps_and_those_around_a_decision_are_kept_in_full() -> None:
    run = SyntheticRun([0.001, 0.002]).run_steps(1000, shares=[8, 8])
    told = Decision(t=run.events[2 * 500].t, what="x", reason="y", numbers={})
    events = sorted([*run.events, told], key=lambda event: event.t)
    steps = set(fold_events(events).detail.records()[1].astype(int))
    assert set(range(100)) <= steps
    around = {step for step in steps if step > 100 and step % 100}
    assert len(around) == pytest.approx(50, abs=2)
    middle = (min(around) + max(around)) / 2
    assert middle == pytest.approx(500, abs=3)
    assert {200, 300, 900} <= steps


def test_the_sample_gets_thinner_when_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline.observe.page.detail._MOST_RECORDS", 50)
    detail = Detail()
    for number in range(20_000):
        record = step_done(step=number, t=START + number)
        detail.add(assemble_step(number, 0, {0: record}, before={}, pauses=Pauses()), START)
    sampled = [step for step in detail.records()[1] if step >= 100]
    assert 20 <= len(sampled) <= 51
    assert max(sampled) > 19_000


def test_steps_that_were_summed_up_count_as_many() -> None:
    both = view([0, 1])
    done = [
        StepsDone(
            t=START + 10,
            worker=worker,
            step=0,
            steps=50,
            epoch=0,
            view=0,
            samples=400,
            start=0,
            stop=800,
            since=START,
            compute_s=5.0 + worker,
            data_s=0.0,
            exchange_s=3.0 - worker,
            update_s=0.5,
        )
        for worker in (0, 1)
    ]
    fold = fold_events([both, *done])
    assert fold.totals.num_steps == 50
    assert fold.used.samples == 800
    assert Accounts(fold).caused_waits == {1: pytest.approx(1.0)}


def summed(worker: int, step: int, steps: int, *, compute_s: float, at: float) -> StepsDone:
    """Steps of 0.2 s each, from `at` on."""
    return StepsDone(
        t=at + 0.2 * steps,
        worker=worker,
        step=step,
        steps=steps,
        epoch=0,
        view=0,
        samples=4 * steps,
        start=8 * step,
        stop=8 * (step + steps),
        since=at,
        compute_s=compute_s * steps,
        data_s=0.0,
        exchange_s=(0.2 - compute_s) * steps,
        update_s=0.0,
    )


def test_ranges_that_end_at_different_steps_are_brought_together() -> None:
    ranges = [
        summed(0, 0, 50, compute_s=0.05, at=START),
        summed(1, 0, 49, compute_s=0.15, at=START),
        summed(1, 49, 51, compute_s=0.15, at=START + 0.2 * 49),
        summed(0, 50, 50, compute_s=0.05, at=START + 10),
    ]
    fold = fold_events([view([0, 1]), *ranges])
    assert fold.totals.num_steps == 100
    assert fold.used.samples == 800
    assert fold.stepper.num_incomplete == 0
    accounts = Accounts(fold)
    assert accounts.caused_waits == {1: pytest.approx(100 * 0.1)}
    assert accounts.spent_s(0, "exchange") == pytest.approx(100 * 0.05)
    assert fold.pace().step_s == pytest.approx(0.2)


def test_a_range_of_a_worker_whose_log_ends_is_not_lost() -> None:
    ranges = [
        summed(0, 0, 50, compute_s=0.05, at=START),
        summed(1, 0, 20, compute_s=0.15, at=START),
    ]
    fold = fold_events([view([0, 1]), *ranges])
    assert fold.totals.num_steps == 50
    assert fold.stepper.num_incomplete == 30
    assert Accounts(fold).spent_s(0, "compute") == pytest.approx(50 * 0.05)


def test_a_step_that_lacks_a_report_is_given_up() -> None:
    stepper = Stepper(Pauses())
    stepper.adopt(view([0, 1]))
    given = [len(stepper.add(step_done(step=number, worker=0))) for number in range(100)]
    assert sum(given) > 0
    rest = list(stepper.finish())
    assert sum(given) + len(rest) == 100
    assert stepper.num_incomplete == 100


def test_a_step_that_was_done_again_counts_as_the_last_time() -> None:
    events = [
        view([0, 1]),
        step_done(step=0, worker=0, view=0, samples=8),
        view([0], number=1, t=START + 1),
        step_done(step=0, worker=0, view=1, samples=16, stop=16, t=START + 2),
    ]
    assert fold_events(events).used.samples == 16


def test_what_was_logged_is_weighted_by_samples_and_void_views_are_left_out() -> None:
    def logged(worker: int, samples: int, loss: float | None, number: int) -> Logged:
        return Logged(
            t=START,
            worker=worker,
            step=0,
            epoch=0,
            samples=samples,
            values={"loss": loss},
            view=number,
        )

    events = [
        logged(0, 100, 50.0, 0),
        logged(0, 30, 1.0, 1),
        logged(1, 10, 5.0, 1),
        logged(2, 10, None, 1),
        logged(1, 99, 77.0, 0),
    ]
    fold = fold_events(events)
    _, _, _, values = fold.curves.series["loss"].columns()
    assert list(values) == [pytest.approx((30 * 1 + 10 * 5) / 40)]


def test_one_line_for_all_workers_is_three_rows() -> None:
    steps = [
        StepSummary(
            t=float(number + 1),
            step=number,
            epoch=0,
            view=0,
            workers=1000,
            samples=5000,
            start=0,
            stop=5000,
            least_compute_s=0.2,
            median_compute_s=0.5,
            greatest_compute_s=0.9,
            slowest=7,
            exchange_s=0.1,
            update_s=0.0,
        )
        for number in range(10)
    ]
    fold = fold_events(steps)
    assert len(fold.spans.sums) == 3
    accounts = Accounts(fold)
    assert accounts.weight == {1: 1000.0}
    assert accounts.caused_waits == {7: pytest.approx(10 * 0.4)}
    assert fold.used.samples == 50_000
    assert fold.pace().step_s == pytest.approx(1.0)
    assert fold.pace().throughput == pytest.approx(5000)


def test_units_are_kept_beside_their_step() -> None:
    event = UnitsExchanged(t=START, worker=1, step=3, units=[(0, 0.1, 0.2, 0.3)])
    assert fold_events([event]).detail.units().ravel() == pytest.approx([1, 3, 0, 0.1, 0.2, 0.3])


def test_reading_ends_at_its_deadline() -> None:
    with pytest.raises(ReportTimeoutError, match="gangline report"):
        fold_events(uneven_run().events, deadline=0.0)


def test_an_empty_log_folds_to_nothing() -> None:
    fold: Fold = fold_events([])
    assert fold.length_s == 0.0
    assert Accounts(fold).workers == []
    assert msgspec.to_builtins(fold.happenings.marks) == []


def test_a_newcomers_wait_to_be_let_in_is_no_recovery() -> None:
    def regrouped(worker: int, took_s: float) -> Regrouped:
        return Regrouped(
            **{"t": START + 30, "worker": worker, "view": 1, "group": 1, "members": [0, 1]},
            **{"step": 9, "num_behind": 1, "took_s": took_s, "reason": "worker 1 joined"},
        )

    view = {"step": 0, "members": [0], "shares": [8], "reason": "given"}
    events = [ViewAdopted(t=START, view=0, **view), regrouped(1, 21.3), regrouped(0, 0.038)]
    assert [one.took_s for one in fold_events(events).happenings.of("recovery")] == [0.038]


def test_page_and_text_agree_where_a_group_parts_into_teams() -> None:
    together = [step_done(t=START + 0.2 * n, step=n) for n in range(40)]
    apart = [
        step_done(t=START + 10 + 0.2 * n, step=n, worker=team - 1, team=team)
        for n in range(40, 80)
        for team in (1, 2)
    ]
    views = [
        ViewAdopted(
            t=START, view=0, team=team, step=0, members=[max(0, team - 1)], shares=[8], reason=""
        )
        for team in range(3)
    ]
    events = [*views, *together, *apart]
    page, text = fold_events(events), summarize(events)
    assert page.pace().throughput == pytest.approx(text.throughput, rel=0.02)
    assert page.used.samples == text.samples


def test_a_log_of_absurd_numbers_is_refused_or_bounded() -> None:
    with pytest.raises(UsageError, match="worker 1000000000"):
        fold_events([view([10**9]), step_done(worker=10**9)])
    cells = Cells(1, most_cells=1 << 12, most_bins=256)
    one, far = np.zeros(1, dtype=np.int64), np.full(1, 1e300)
    cells.add(one, one, np.zeros(1), far, np.ones(1))
    assert cells.sums.sum() == pytest.approx(1.0)
