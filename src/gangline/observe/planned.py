# SPDX-License-Identifier: Apache-2.0
"""What was planned against what was measured.

Both are what a step takes from asking for its batch to the end of its update: what the loop does
between steps is nobody's plan.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from gangline.observe.summary import PlanSummary
from gangline.observe.timeline import Step, Timeline, accounted_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.spec.event import PlanMade


def summarize_plan(timeline: Timeline, steady: Sequence[Step]) -> PlanSummary | None:
    """The last plan of a run, with the steps that were made by it; None where there was no plan."""
    if not timeline.plans:
        return None
    plan = timeline.plans[-1]
    members = _members_at(plan, timeline)
    steps = [
        step
        for step in steady
        if timeline.members_of(step) == members and _is_by(plan, step, timeline)
    ]
    measured_s = median(map(_measured_s, steps)) if steps else None
    return PlanSummary(
        chosen=plan.chosen,
        structure=plan.structure,
        bound=plan.bound,
        step=plan.step,
        predicted_s=plan.step_s,
        measured_s=measured_s,
        num_steps=len(steps),
        error=None if not measured_s else plan.step_s / measured_s - 1,
        reasons=plan.reasons,
        hint=plan.hint,
    )


def _members_at(plan: PlanMade, timeline: Timeline) -> frozenset[int]:
    """For whom a plan was made: those of the step that it came after."""
    before = [step for step in timeline.steps if step.number <= plan.step]
    made_at = before[-1:] or timeline.steps[:1]
    return timeline.members_of(made_at[0]) if made_at else frozenset()


def _is_by(plan: PlanMade, step: Step, timeline: Timeline) -> bool:
    view = timeline.views.get((step.team, step.view))
    return step.number > plan.step and view is not None and view.structure == plan.structure


def _measured_s(step: Step) -> float:
    return median(map(accounted_s, step.records.values()))
