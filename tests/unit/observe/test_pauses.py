# SPDX-License-Identifier: Apache-2.0
"""Time that the job stood still because an operator asked for it has a name, and is in no step."""

from __future__ import annotations

import pytest
from synthetic_run import SyntheticRun

from gangline.observe import summarize
from gangline.observe.page.accounts import Accounts
from gangline.observe.page.bill import Price, make_bill
from gangline.observe.page.fold import fold_events
from gangline.observe.pauses import Pauses
from gangline.observe.report import headline
from gangline.spec.event import Decision, StepsDone

PAUSED_S = 30.0


def order(what: str, t: float) -> Decision:
    return Decision(t=t, what=what, reason="an operator asked for it", numbers={})


def paused_run(*, times: int = 1) -> SyntheticRun:
    """Two workers, 40 steps of 0.115 s, and pauses in the middle of an epoch and of a view."""
    run = SyntheticRun([0.01, 0.01])
    run.run_steps(20, shares=[10, 10])
    for _ in range(times):
        run.events.append(order("pause", run.now))
        run.now += PAUSED_S
        run.events.append(order("resume_steps", run.now))
        run._run_step([10, 10], epoch=0)
    return run.run_steps(19, shares=[10, 10])


def test_a_pause_is_in_no_step_and_no_rate() -> None:
    paused = summarize(paused_run().end().events)
    assert (paused.num_pauses, paused.paused_s) == (1, pytest.approx(PAUSED_S))
    assert paused.throughput == pytest.approx(20 / 0.115)
    assert paused.efficiency == pytest.approx(0.1 / 0.115)
    assert paused.step_p90_s == pytest.approx(0.115)
    assert [worker.spent.other_s for worker in paused.workers] == pytest.approx([0, 0], abs=1e-6)
    assert "paused by an operator 1 time, 30 s in all: no part of any step" in headline(paused)


def test_every_pause_is_told_though_all_are_in_the_same_words() -> None:
    run = paused_run(times=2).end()
    summary = summarize(run.events)
    assert [one.what for one in summary.decisions] == ["pause", "resume_steps"] * 2
    marks = fold_events(run.events).happenings.of("pause")
    assert [(one.label, one.took_s) for one in marks] == [
        ("pause", pytest.approx(PAUSED_S)),
        ("pause ends", None),
    ] * 2


def test_a_pause_is_a_line_of_the_bill_and_of_no_step() -> None:
    fold = fold_events(paused_run().end().events)
    assert fold.pace().throughput == pytest.approx(20 / 0.115)
    assert max(fold.all_steps()[2]) == pytest.approx(0.115)
    bill = make_bill(Accounts(fold), Price(per_hour=3600))
    first = bill.items[0]
    assert first.kind == "paused"
    assert first.node_s == pytest.approx(2 * PAUSED_S)
    assert first.money == pytest.approx(2 * PAUSED_S)
    assert first.text.startswith("The job was paused, because an operator asked for it: 87 %")
    assert "other" not in {item.kind for item in bill.items}
    assert {(one.worker, one.why) for one in fold.presence.absences} == {
        (0, "paused"),
        (1, "paused"),
    }


def test_a_run_that_ends_while_it_is_paused_was_paused_to_the_end() -> None:
    run = SyntheticRun([0.01]).run_steps(10, shares=[10])
    run.events.append(order("pause", run.now))
    run.now += 5.0
    run.end("interrupted")
    assert summarize(run.events).paused_s == pytest.approx(5.0)
    bill = make_bill(Accounts(fold_events(run.events)), Price())
    assert {item.kind: item.node_s for item in bill.items}["paused"] == pytest.approx(5.0)


def test_summed_up_steps_hold_no_pause() -> None:
    steps = StepsDone(
        **{"t": 50.0, "since": 10.0, "worker": 0, "step": 0, "steps": 100, "epoch": 0, "view": 0},
        **{"samples": 800, "start": 0, "stop": 800, "compute_s": 9.0, "data_s": 0.0},
        **{"exchange_s": 0.5, "update_s": 0.5},
    )
    fold = fold_events([order("pause", 15.0), order("resume_steps", 45.0), steps])
    assert fold.totals.spent[0].sum() == pytest.approx(10.0)


def test_orders_may_come_in_any_order() -> None:
    pauses = Pauses()
    for what, t in (("resume_steps", 20.0), ("pause", 30.0), ("pause", 10.0), ("end", 35.0)):
        pauses.add(order(what, t))
    assert pauses.within(0.0, 100.0) == pytest.approx(15.0)
    assert pauses.within(12.0, 31.0) == pytest.approx(9.0)
