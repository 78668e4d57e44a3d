# SPDX-License-Identifier: Apache-2.0
"""The events of a simulated run: those that a real one logs, at virtual times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.spec.event import (
    AnyEvent,
    RunEnded,
    RunStarted,
    StepDone,
    StepSummary,
    ViewAdopted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.control import StepMeasured
    from gangline.simulation.scenario import SimulatedNode
    from gangline.spec.view import View

MANY_WORKERS = 64
"""With more, a step is logged as one summary instead of one event per worker."""


def started(now: float, *, nodes: Sequence[SimulatedNode]) -> RunStarted:
    """The run begins."""
    return RunStarted(
        t=now,
        command=["gangline", "simulate"],
        workers=len(nodes),
        nodes=[node.name for node in nodes],
        speeds=[node.speed for node in nodes],
        scale=1.0,
    )


def ended(now: float, *, steps: int) -> RunEnded:
    """The run is over."""
    return RunEnded(t=now, status="done", reason=f"all {steps} steps simulated", wall_s=now)


def adopted(now: float, view: View, *, step: int) -> ViewAdopted:
    """A view takes effect."""
    return ViewAdopted(
        t=now,
        view=view.number,
        step=step,
        members=list(view.members),
        shares=list(view.shares),
        reason=view.reason,
    )


def step_events(
    now: float, measured: StepMeasured, exchange_s: float, update_s: float
) -> Iterator[AnyEvent]:
    """What the log says about a step: every worker's part, or a summary where they are many."""
    compute_s = measured.compute_s
    slowest = int(compute_s.argmax())
    if len(compute_s) > MANY_WORKERS:
        yield StepSummary(
            t=now,
            step=measured.step,
            epoch=0,
            view=measured.view,
            workers=len(compute_s),
            samples=int(measured.samples.sum()),
            least_compute_s=float(compute_s.min()),
            median_compute_s=float(np.median(compute_s)),
            greatest_compute_s=float(compute_s[slowest]),
            slowest=measured.workers[slowest],
            exchange_s=exchange_s,
            update_s=update_s,
        )
        return
    for rank, worker in enumerate(measured.workers):
        yield StepDone(
            t=now,
            worker=worker,
            step=measured.step,
            epoch=0,
            view=measured.view,
            samples=int(measured.samples[rank]),
            start=0,
            stop=int(measured.samples.sum()),
            compute_s=float(compute_s[rank]),
            data_s=0.0,
            exchange_s=float(compute_s[slowest] - compute_s[rank]) + exchange_s,
            update_s=update_s,
        )
