# SPDX-License-Identifier: Apache-2.0
"""Who was excluded is named at the end of a run."""

from __future__ import annotations

from synthetic_run import START, SyntheticRun

from gangline.observe import summarize
from gangline.observe.exclusions import exclusion_lines, find_exclusions
from gangline.observe.summary import DecisionSummary
from gangline.spec.event import Decision


def decision(what: str, worker: int, step: int | None = None, reason: str = "") -> DecisionSummary:
    numbers = {"worker": float(worker)} | ({} if step is None else {"step": float(step)})
    return DecisionSummary(at_s=1.0, what=what, reason=reason, numbers=numbers)


def test_who_was_excluded_is_named_with_why_and_since_when() -> None:
    decisions = [
        decision("publish_view", 0, 0),
        decision("exclude", 3, 18, "step 18: worker 3 needs 2 s; without it a step takes 1 s"),
        decision("exclude", 1, 20, "step 20: worker 1 needs 3 s"),
        decision("take_back", 3),
        decision("take_back", 1),
        decision("exclude", 1, 90, "step 90: worker 1 needs 4 s"),
    ]
    assert exclusion_lines(decisions) == [
        "worker 1 was excluded after step 90 (2 times, the last one), and was a spare to the end: "
        "worker 1 needs 4 s",
        "worker 3 was excluded after step 18, and was taken back: worker 3 needs 2 s; without it a "
        "step takes 1 s",
    ]


def test_nothing_is_said_where_nobody_was_excluded() -> None:
    assert exclusion_lines([decision("take_back", 1), decision("publish_view", 0, 0)]) == []


def test_an_operators_exclusion_is_of_no_step_and_is_told_by_its_time() -> None:
    why = "worker 1 is kept out: an operator asked for it"
    run = SyntheticRun([0.01, 0.01]).run_steps(5, shares=[10, 10])
    for at_s in (3.0, 200.0):
        event = Decision(t=START + at_s, what="exclude", reason=why, numbers={"worker": 1.0})
        run.events.append(event)
    decisions = summarize(run.events).decisions
    assert find_exclusions(decisions)[0].step is None
    assert exclusion_lines(decisions) == [
        "worker 1 was excluded after 3.3 min (2 times, the last one), and was a spare to the end: "
        f"{why}"
    ]
