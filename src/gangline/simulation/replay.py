# SPDX-License-Identifier: Apache-2.0
"""Replays a recorded run: its measurements, through `decide`, give the commands that it gave.

The log of a real run will do as well as that of a simulated one, merged over its workers.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from gangline.control import ControlState, StepMeasured, WorkersJoined, decide
from gangline.spec.errors import LogError, UsageError
from gangline.spec.event import Regrouped, StepDone, StepSummary, ViewAdopted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gangline.control import Command, ControlOptions
    from gangline.spec.event import AnyEvent


def replay(
    events: Iterable[AnyEvent], *, options: ControlOptions, founders: WorkersJoined | None = None
) -> list[Command]:
    """The commands that `decide` gives when it is told what the log tells.

    `options` are those of the run. `founders` is only needed where workers had ceilings or given
    speeds, which the log does not hold; else it is the first view's members.
    """
    if options.allocation.startswith("kqv"):
        raise UsageError(
            f"a run with allocation={options.allocation!r} cannot be replayed from its log, which "
            "does not hold the metrics that it was cut by"
        )
    views: list[ViewAdopted] = []
    steps: list[StepDone] = []
    for event in events:
        if isinstance(event, ViewAdopted):
            views.append(event)
        elif isinstance(event, StepDone):
            steps.append(event)
        elif isinstance(event, StepSummary):
            raise LogError(
                f"step {event.step} is logged as a summary of {event.workers} workers; a replay "
                "needs every worker's measurement"
            )
        elif isinstance(event, Regrouped):
            raise LogError(
                f"worker {event.worker} was regrouped with step {event.step}; a run whose members "
                "changed cannot be replayed, because its log does not hold what the coordinator saw"
            )
    if not views:
        raise LogError("there is no view in the log, so nobody is known to have taken part")
    first = min(views, key=lambda view: view.view)
    joined = founders or WorkersJoined(workers=tuple(first.members))
    state, commands = decide(ControlState.begin(options), joined, first.t)
    steps.sort(key=lambda done: done.step)
    for _, reports in groupby(steps, key=lambda done: done.step):
        known = list(reports)
        state, more = decide(state, _measured(known), max(done.t for done in known))
        commands = commands + more
    return commands


def _measured(reports: Sequence[StepDone]) -> StepMeasured:
    return StepMeasured(
        step=reports[0].step,
        view=max(done.view for done in reports),
        workers=tuple(done.worker for done in reports),
        samples=np.array([done.samples for done in reports], dtype=np.int64),
        compute_s=np.array([done.compute_s for done in reports]),
        exchange_s=min(done.exchange_s for done in reports),
    )
