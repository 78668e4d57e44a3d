# SPDX-License-Identifier: Apache-2.0
"""Logs of runs that never were, with something of everything that a page can show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.eventlog import EventWriter, log_path
from gangline.spec.event import (
    AnyEvent,
    Decision,
    FaultFired,
    LinkMeasured,
    Logged,
    PlanMade,
    Regrouped,
    RunEnded,
    RunStarted,
    StepDone,
    StepSummary,
    UnitsExchanged,
    Utilisation,
    ViewAdopted,
    WorkerEnded,
)

if TYPE_CHECKING:
    from pathlib import Path

START = 1_700_000_000.0
COMPUTE_S = (0.1, 0.2, 0.4)
"""What a step takes each worker: the last one is waited for."""
EXCHANGE_S, UPDATE_S, DATA_S = 0.02, 0.01, 0.005
STEP_S = DATA_S + max(COMPUTE_S) + EXCHANGE_S + UPDATE_S
SHARES = (40, 20, 4)
NUM_STEPS = 150


def plain_run(run_dir: Path, *, name: str = "made-up", reason: str = "it is slow") -> Path:
    """Three workers, 150 steps, one decision, one fault; `name` and `reason` are a user's text."""
    events: dict[str, list[AnyEvent]] = {"launcher": _frame(name), "coordinator": [_plan()]}
    events["launcher"].insert(1, _view())
    middle = START + 1 + 100 * STEP_S
    numbers = {"step": 100.0, "gain": 0.25}
    events["coordinator"].append(
        Decision(t=middle, what="publish_view", reason=reason, numbers=numbers)
    )
    for worker in range(len(SHARES)):
        events[f"worker {worker}"] = [
            event for step in range(NUM_STEPS) for event in _step(worker, step)
        ]
    events["worker 2"].append(_fault())
    return write_logs(run_dir, events, run=name)


def summed_run(run_dir: Path, *, workers: int = 100_000, steps: int = 40) -> Path:
    """As the simulator writes it where there are too many workers for a line each."""
    events: list[AnyEvent] = [
        StepSummary(
            t=float(step + 1),
            step=step,
            epoch=0,
            view=0,
            workers=workers,
            samples=10 * workers,
            start=0,
            stop=10 * workers,
            least_compute_s=0.5,
            median_compute_s=0.7,
            greatest_compute_s=0.9,
            slowest=4711,
            exchange_s=0.08,
            update_s=0.02,
        )
        for step in range(steps)
    ]
    return write_logs(run_dir, {"simulator": events}, run="many", now=0.0)


def write_logs(
    run_dir: Path, events: dict[str, list[AnyEvent]], *, run: str, now: float = START
) -> Path:
    """The run folder: a log for each source."""
    for source, own in events.items():
        log = EventWriter(log_path(run_dir, source), run=run, source=source, clock=lambda: now)
        for event in own:
            log.write(event)
        log.close()
    return run_dir


def _frame(name: str) -> list[AnyEvent]:
    nodes = [f"{name} node {worker}" for worker in range(len(SHARES))]
    end = START + 1 + NUM_STEPS * STEP_S
    return [
        RunStarted(
            t=START,
            command=["train.py", name],
            workers=len(SHARES),
            nodes=nodes,
            speeds=[1.0] * len(SHARES),
            scale=1.0,
        ),
        WorkerEnded(t=end, worker=1, exit_code=1, signal=None, reason=f"{name} error"),
        RunEnded(t=end, status="done", reason=name, wall_s=end - START),
    ]


def _view() -> ViewAdopted:
    return ViewAdopted(
        t=START + 1,
        view=0,
        step=0,
        members=[0, 1, 2],
        shares=list(SHARES),
        reason="given",
        structure="ring(ring(0*, 1), ring(2*))",
    )


def _plan() -> PlanMade:
    return PlanMade(
        t=START + 1.5,
        step=0,
        chosen="ring",
        structure="",
        bound="compute-bound",
        nodes=["a", "b", "c"],
        shares=list(SHARES),
        compute_s=0.4,
        exchange_s=0.02,
        hidden_s=0.0,
        other_s=0.01,
        step_s=0.42,
        reasons=["the links are alike"],
    )


def _fault() -> FaultFired:
    t = START + 1 + NUM_STEPS * STEP_S
    return FaultFired(t=t, worker=2, step=NUM_STEPS - 1, fault="slow", where="any")


def _step(worker: int, step: int) -> list[AnyEvent]:
    t = START + 1 + (step + 1) * STEP_S
    wait_s = max(COMPUTE_S) - COMPUTE_S[worker]
    total = sum(SHARES)
    done: list[AnyEvent] = [
        StepDone(
            t=t,
            worker=worker,
            step=step,
            epoch=0,
            view=0,
            samples=SHARES[worker],
            start=step * total,
            stop=(step + 1) * total,
            compute_s=COMPUTE_S[worker],
            data_s=DATA_S,
            exchange_s=EXCHANGE_S + wait_s,
            update_s=UPDATE_S,
        ),
        # Weighted by samples this is 100 / (step + 1), whoever had how many.
        Logged(
            t=t,
            worker=worker,
            step=step,
            epoch=0,
            samples=SHARES[worker],
            values={"loss": 100 / (step + 1) * total / (3 * SHARES[worker])},
        ),
    ]
    if step % 2 == 0:
        done.append(_busy(t, worker))
    if step < 100:
        begin_s = COMPUTE_S[worker] + wait_s
        units = [(0, 0.05, begin_s, begin_s + 0.01), (1, 0.09, begin_s + 0.01, begin_s + 0.02)]
        done.append(UnitsExchanged(t=t, worker=worker, step=step, units=units))
    if step == NUM_STEPS - 1:
        done.append(_link(t, worker))
        done.append(_regrouped(t, worker))
    return done


def _busy(t: float, worker: int) -> Utilisation:
    return Utilisation(
        t=t,
        worker=worker,
        cpu=1.0 + worker,
        node_cpu=0.5,
        memory_bytes=1_000_000 * (worker + 1),
        node_memory=0.25,
        threads=8,
        sent_bytes=500,
        received_bytes=700,
    )


def _link(t: float, worker: int) -> LinkMeasured:
    return LinkMeasured(
        t=t,
        worker=worker,
        peer=(worker + 1) % len(SHARES),
        latency_s=1e-4,
        bytes_per_s=1e8,
        bytes=1_000_000 + worker,
        corrupt=0,
    )


def _regrouped(t: float, worker: int) -> Regrouped:
    return Regrouped(
        t=t,
        worker=worker,
        view=1,
        group=1,
        members=[0, 2],
        step=NUM_STEPS,
        num_behind=0,
        took_s=0.5,
        reason="worker 1 was lost",
    )
