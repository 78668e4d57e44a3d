# SPDX-License-Identifier: Apache-2.0
"""Who was excluded for slowing the others down, since when, why, and whether it was taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.observe.report import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.observe.summary import DecisionSummary


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was excluded, the last time that it was."""

    worker: int
    step: int | None
    """The step after which it was decided; None where an operator did, who looks at no step."""
    at_s: float
    """When, since the run began."""
    reason: str
    times: int
    is_back: bool
    """Whether it was asked to come back since."""


def find_exclusions(decisions: Iterable[DecisionSummary]) -> list[Exclusion]:
    """Of each worker the last exclusion, in the order of their numbers."""
    found: dict[int, Exclusion] = {}
    for decision in decisions:
        worker, step = int(decision.numbers.get("worker") or 0), decision.numbers.get("step")
        before = found.get(worker)
        if decision.what == "exclude":
            found[worker] = Exclusion(
                worker=worker,
                step=None if step is None else int(step),
                at_s=decision.at_s,
                reason=decision.reason.removeprefix(f"step {step or 0:.0f}: "),
                times=1 if before is None else before.times + 1,
                is_back=False,
            )
        elif decision.what == "take_back" and before is not None:
            found[worker] = msgspec.structs.replace(before, is_back=True)
    return [found[worker] for worker in sorted(found)]


def exclusion_lines(decisions: Iterable[DecisionSummary]) -> list[str]:
    """A line for each worker that was excluded."""
    return [_line(one) for one in find_exclusions(decisions)]


def _line(one: Exclusion) -> str:
    often = f" ({one.times} times, the last one)" if one.times > 1 else ""
    since = "and was taken back" if one.is_back else "and was a spare to the end"
    when = seconds(one.at_s) if one.step is None else f"step {one.step}"
    return f"worker {one.worker} was excluded after {when}{often}, {since}: {one.reason}"
