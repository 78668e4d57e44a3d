# SPDX-License-Identifier: Apache-2.0
"""What a run was planned to take, against what it took."""

from __future__ import annotations

import pytest
from synthetic_run import START, SyntheticRun

from gangline.cli.run.end import summary_lines
from gangline.observe import summarize
from gangline.observe.report import plan_lines
from gangline.spec.event import PlanMade

STEP_S = 8 * 0.02 + 0.01 + 0.005
"""What a step of the synthetic run takes, for both workers."""


def made(step: int, *, step_s: float, structure: str = "") -> PlanMade:
    return PlanMade(
        t=START,
        step=step,
        chosen="flat ring, all nodes",
        structure=structure,
        bound="compute-bound",
        nodes=["n0", "n1"],
        shares=[8, 8],
        compute_s=step_s,
        exchange_s=0.0,
        hidden_s=0.0,
        other_s=0.0,
        step_s=step_s,
        reasons=["because"],
    )


def run_with(*plans: PlanMade) -> SyntheticRun:
    run = SyntheticRun([0.01, 0.02]).run_steps(40, shares=[8, 8]).end()
    run.events.extend(plans)
    return run


def test_the_last_plan_is_compared_with_the_steps_after_it() -> None:
    summary = summarize(run_with(made(9, step_s=9.9), made(19, step_s=1.1 * STEP_S)).events)
    assert summary.plan is not None
    assert summary.plan.num_steps == 20
    assert summary.plan.measured_s == pytest.approx(STEP_S)
    assert summary.plan.error == pytest.approx(0.1)
    first, *reasons = plan_lines(summary)
    assert first == (
        "planned: flat ring, all nodes (compute-bound), predicted step 193 ms, measured 175 ms over "
        "20 steps (+10%)"
    )
    assert reasons == ["- because"]
    assert first in summary_lines(summary)


def test_no_step_counts_that_was_exchanged_in_another_structure() -> None:
    summary = summarize(run_with(made(9, step_s=1.0, structure="ring(ring(0*), ring(1*))")).events)
    assert summary.plan is not None
    assert (summary.plan.measured_s, summary.plan.error) == (None, None)
    assert plan_lines(summary)[0].endswith("; no step was made by it")


def test_no_step_counts_of_other_members_than_it_was_planned_for() -> None:
    run = SyntheticRun([0.01, 0.02]).run_steps(20, shares=[8, 8])
    run.per_sample_s = run.per_sample_s[:1]
    run.run_steps(30, shares=[8]).end()
    run.events.append(made(9, step_s=STEP_S))
    summary = summarize(run.events)
    assert summary.plan is not None
    assert summary.plan.num_steps == 10, "not the steps that one of them made alone"
    assert summary.plan.measured_s == pytest.approx(STEP_S)


def test_nothing_is_said_when_there_was_no_plan() -> None:
    summary = summarize(run_with().events)
    assert summary.plan is None
    assert plan_lines(summary) == []
