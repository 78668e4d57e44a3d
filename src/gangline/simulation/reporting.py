# SPDX-License-Identifier: Apache-2.0
"""The events of a simulated run: those that a real one logs, at virtual times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.spec.event import (
    AnyEvent,
    Decision,
    EpochDone,
    Regrouped,
    RunEnded,
    RunStarted,
    StepDone,
    StepSummary,
    ViewAdopted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.simulation.course import Position
    from gangline.simulation.engine.rounds import Round
    from gangline.simulation.lives import Life
    from gangline.simulation.scenario import Scenario, SimulatedNode
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


def ended(now: float, *, steps: int, problem: str | None = None) -> RunEnded:
    """The run is over."""
    status = "done" if problem is None else "failed"
    reason = problem or f"all {steps} steps simulated"
    return RunEnded(t=now, status=status, reason=reason, wall_s=now)


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


def respawned(now: float, life: Life, dead: Life, *, left: int) -> Decision:
    """A worker takes the place of a dead one."""
    return Decision(
        t=now,
        what="respawn",
        reason=f"worker {dead.worker} was killed: worker {life.worker} takes its place",
        numbers={"worker": float(life.worker), "of": float(dead.worker), "left": float(left)},
    )


def regrouped(
    now: float, lives: Sequence[Life], view: View, *, step: int, num_behind: int
) -> Iterator[Regrouped]:
    """These workers are in a new group, and go on."""
    members = list(view.members)  # one for all of them: there may be thousands
    for life in lives:
        since_s = now if life.lost_group_s is None else life.lost_group_s
        yield Regrouped(
            t=now,
            worker=life.worker,
            view=view.number,
            group=view.group,
            members=members,
            step=step,
            num_behind=num_behind,
            took_s=now - since_s,
            reason=view.reason,
            team=max(0, view.team),
        )


def epoch_event(now: float, worker: int, position: Position) -> EpochDone:
    """A worker has come to the end of an epoch."""
    return EpochDone(
        t=now, worker=worker, epoch=position.epoch, step=position.step, samples=position.start
    )


def step_events(
    now: float, done: Round, workers: Sequence[int], *, scenario: Scenario
) -> Iterator[AnyEvent]:
    """What these workers log of a step: each its part, or a summary where the group is large."""
    if len(done.view.members) > MANY_WORKERS:
        yield _summary(now, done, workers, scenario=scenario)
    else:
        yield from worker_events(now, done, workers, scenario=scenario)


def worker_events(
    now: float, done: Round, workers: Sequence[int], *, scenario: Scenario
) -> Iterator[StepDone]:
    """What each of these workers says of a step."""
    slowest_s = float(done.compute_s.max())
    for worker in workers:
        rank = done.view.rank_of(worker)
        yield StepDone(
            t=now,
            worker=worker,
            step=done.position.step,
            epoch=done.position.epoch,
            view=done.view.number,
            samples=int(done.samples[rank]),
            start=done.position.start,
            stop=done.after.start,
            compute_s=float(done.compute_s[rank]),
            data_s=0.0,
            exchange_s=float(slowest_s - done.compute_s[rank]) + done.exchange_s,
            update_s=scenario.update_s + done.served_s,
            parts=[list(part) for part in done.parts[rank]] if done.parts else [],
        )


def _summary(now: float, done: Round, workers: Sequence[int], *, scenario: Scenario) -> StepSummary:
    compute_s = done.compute_s
    slowest = int(compute_s.argmax())
    return StepSummary(
        t=now,
        step=done.position.step,
        epoch=done.position.epoch,
        view=done.view.number,
        workers=len(workers),
        samples=int(done.samples.sum()),
        start=done.position.start,
        stop=done.after.start,
        least_compute_s=float(compute_s.min()),
        median_compute_s=float(np.median(compute_s)),
        greatest_compute_s=float(compute_s[slowest]),
        slowest=done.view.members[slowest],
        exchange_s=done.exchange_s,
        update_s=scenario.update_s,
    )
