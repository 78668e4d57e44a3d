# SPDX-License-Identifier: Apache-2.0
"""Where a step's time goes beyond the compute-only optimum, and what CPU time is our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.spec.event import AnyEvent, StepDone
from paced_teams import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from paced_teams import Costs, Taken

CONTROL_THREADS = ("gangline-control-in", "gangline-control-out", "recv_events", "keepalive")


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """T = T* + all that follows. Means over the measured steps, in seconds."""

    optimum_s: float
    """T*"""
    cut_s: float
    """These shares in place of the best ones, by the costs measured alone."""
    crowding_s: float
    """Computing takes longer when all workers run than when each runs alone."""
    data_s: float
    """Fetching the batch."""
    noise_s: float
    """Waiting for the noisiest: every step waits for whoever is late this time."""
    exchange_s: float
    """The exchange itself: from the last worker's last gradient until the sum is there."""
    update_s: float
    """The optimizer."""
    rest_s: float
    """Between the steps: snapshots, events, messages, the loop itself."""
    step_s: float
    """T"""

    def to_markdown(self) -> str:
        """A table of the parts."""
        parts = [
            ("T*, the compute-only optimum", self.optimum_s),
            ("cut: other shares than the best", self.cut_s),
            ("computing slower together than alone", self.crowding_s),
            ("data", self.data_s),
            ("waiting for the noisiest", self.noise_s),
            ("exchange", self.exchange_s),
            ("update", self.update_s),
            ("rest (snapshot, events, messages, loop)", self.rest_s),
            ("T, the measured step", self.step_s),
        ]
        rows = [[name, f"{s * 1e3:.2f}", f"{s / self.step_s:.1%}"] for name, s in parts]
        return table(["part", "ms per step", "of T"], rows)


def find_losses(
    events: Sequence[AnyEvent], measured: Sequence[Taken], *, costs: Costs, global_batch: int
) -> Losses:
    """The parts of the measured steps, from what the workers logged about each."""
    numbers = {taken.first + i for taken in measured for i in range(taken.count)}
    shares, compute, data, exchange, update = _by_step(events, numbers, len(costs.fixed_s))
    alone = np.asarray([costs.predict_s(row) for row in shares])
    optimum_s = costs.optimum_s(global_batch)
    planned_s = float(alone.max(axis=1).mean())
    # Who is slowest on average is the bottleneck; that another one is slowest now and then is noise.
    expected_s = float(compute.mean(axis=0).max())
    ready = data + compute
    ready_s = float(ready.mean(axis=0).max())
    parts = {
        "optimum_s": optimum_s,
        "cut_s": planned_s - optimum_s,
        "crowding_s": expected_s - planned_s,
        "data_s": ready_s - expected_s,
        "noise_s": float(ready.max(axis=1).mean()) - ready_s,
        "exchange_s": float(exchange.min(axis=1).mean()),
        "update_s": float(update.mean()),
    }
    step_s = sum(taken.seconds for taken in measured) / sum(taken.count for taken in measured)
    return Losses(**parts, rest_s=step_s - sum(parts.values()), step_s=step_s)


def _by_step(
    events: Sequence[AnyEvent], numbers: set[int], workers: int
) -> tuple[NDArray[np.float64], ...]:
    """Samples, compute, data, exchange and update times: a row per step, a column per worker."""
    steps: dict[int, dict[int, StepDone]] = {}
    for event in events:
        if isinstance(event, StepDone) and event.step in numbers:
            steps.setdefault(event.step, {})[event.worker] = event
    whole = [by_worker for by_worker in steps.values() if len(by_worker) == workers]
    if not whole:
        raise ValueError(f"the log has none of the {len(numbers)} measured steps in full")
    fields = ("samples", "compute_s", "data_s", "exchange_s", "update_s")
    return tuple(
        np.asarray([[getattr(one[worker], name) for worker in range(workers)] for one in whole])
        for name in fields
    )


class OwnCpu(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time that is not the model's, per step; of all workers together, in seconds."""

    communication_s: float
    """The communication threads."""
    control_s: float
    """The threads that talk with the coordinator."""
    hooks_s: float
    """Forward and backward beyond what the same samples took alone: hooks, the end of backward,
    and colder caches."""
    loop_s: float
    """Loader, hand-out, snapshot, events."""
    update_s: float
    """The optimizer's step with our hooks around it."""
    coordinator_s: float
    """The coordinator's process, its start included."""

    def to_markdown(self) -> str:
        """A table of the parts."""
        parts = [
            ("communication threads", self.communication_s),
            ("control threads", self.control_s),
            ("forward and backward beyond alone (hooks, colder caches)", self.hooks_s),
            ("loader, hand-out, snapshot, events", self.loop_s),
            ("optimizer, with our hooks", self.update_s),
            ("coordinator (its start included)", self.coordinator_s),
        ]
        rows = [[name, f"{seconds * 1e3:.2f}"] for name, seconds in parts]
        return table(["CPU time of", "ms per step, all workers"], rows)


def count_own_cpu(measured: Sequence[Taken], *, costs: Costs, coordinator_s: float) -> OwnCpu:
    """Means over the measured steps."""
    weights = [taken.count for taken in measured]

    def mean(values: Sequence[float]) -> float:
        return float(np.average(values, weights=weights))

    def threads(names: Sequence[str]) -> float:
        return mean([_thread_s(taken, names) for taken in measured])

    alone = [
        sum(_alone_s(costs, shares) for shares in taken.shares) / taken.count for taken in measured
    ]
    together = [sum(main[1] for main in taken.main_cpu_s) for taken in measured]
    return OwnCpu(
        communication_s=threads(["gangline-comm"]),
        control_s=threads(CONTROL_THREADS),
        hooks_s=mean(together) - mean(alone),
        loop_s=mean([sum(main[0] for main in taken.main_cpu_s) for taken in measured]),
        update_s=mean([sum(main[2] for main in taken.main_cpu_s) for taken in measured]),
        coordinator_s=coordinator_s,
    )


def _thread_s(taken: Taken, names: Sequence[str]) -> float:
    return sum(
        used
        for threads in taken.thread_cpu_s
        for name, used in threads.items()
        if any(wanted in name for wanted in names)
    )


def _alone_s(costs: Costs, shares: Sequence[int]) -> float:
    lines = zip(costs.fixed_cpu_s, costs.per_sample_cpu_s, shares, strict=True)
    return sum(a + b * n for a, b, n in lines)
