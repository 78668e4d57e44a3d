# SPDX-License-Identifier: Apache-2.0
"""Schedules: in which order each stage does the micro-batches, as lists of what to do.

`gpipe` does all forward passes, then all backward passes. `1f1b` begins a backward pass as soon as it
can, so that a stage never has more micro-batches in flight than there are stages from it to the end.
Both give the exact gradient, since nothing is updated before all micro-batches are done. `pipedream`
goes in the order of `1f1b` and makes an update after each backward pass, by the gradient at the
parameters with which that micro-batch went forward: it never waits for the pipeline to drain, and is
not exact.
"""

from __future__ import annotations

from typing import NamedTuple

from gangline.spec.errors import UsageError
from gangline.spec.pipelines import SCHEDULES

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


class Task(NamedTuple):
    """One thing that a stage does. An update without a micro-batch is that of all of them."""

    kind: str
    micro_batch: int


def tasks_of(schedule: str, *, stage: int, stages: int, micro_batches: int) -> list[Task]:
    """Everything that a stage does with a global batch, in its order."""
    if schedule not in SCHEDULES:
        raise UsageError(f"no schedule {schedule!r}; there are {', '.join(SCHEDULES)}")
    if not 0 <= stage < stages:
        raise UsageError(f"there is no stage {stage} of {stages}")
    ahead = micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)
    order = [Task(FORWARD, number) for number in range(ahead)]
    for number in range(micro_batches):
        order.append(Task(BACKWARD, number))
        if schedule == "pipedream":
            order.append(Task(UPDATE, number))
        if ahead + number < micro_batches:
            order.append(Task(FORWARD, ahead + number))
    if schedule != "pipedream":
        order.append(Task(UPDATE, -1))
    return order
