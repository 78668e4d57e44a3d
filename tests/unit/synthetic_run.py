# SPDX-License-Identifier: Apache-2.0
"""Builds event logs of runs that never were, for the tests of the log and of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.eventlog import EventWriter, log_path
from gangline.spec.event import AnyEvent, EpochDone, RunEnded, RunStarted, StepDone, ViewAdopted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

START = 1000.0


def step_done(**changes: object) -> StepDone:
    """A step of worker 0 with plain values, except for `changes`."""
    values: dict[str, object] = {
        "t": START,
        "worker": 0,
        "step": 0,
        "epoch": 0,
        "view": 0,
        "samples": 8,
        "start": 0,
        "stop": 8,
        "compute_s": 0.1,
        "data_s": 0.0,
        "exchange_s": 0.01,
        "update_s": 0.005,
    }
    return StepDone(**(values | changes))  # type: ignore[arg-type]


class SyntheticRun:
    """A synchronous run of workers whose step takes `fixed_s + per_sample_s * samples`.

    The exchange itself takes `exchange_s`; nobody gets the gradient before the last is ready.
    """

    def __init__(
        self,
        per_sample_s: Sequence[float],
        *,
        fixed_s: float = 0.0,
        exchange_s: float = 0.01,
        update_s: float = 0.005,
        data_s: float = 0.0,
    ) -> None:
        self.per_sample_s = per_sample_s
        self.fixed_s = fixed_s
        self.exchange_s = exchange_s
        self.update_s = update_s
        self.data_s = data_s
        self.now = START
        self.step = 0
        self.view = -1
        self.events: list[AnyEvent] = [self._started()]

    def _started(self) -> RunStarted:
        workers = len(self.per_sample_s)
        return RunStarted(
            t=self.now,
            command=["train.py"],
            workers=workers,
            nodes=[f"n{i}" for i in range(workers)],
            speeds=[1.0] * workers,
            scale=1.0,
        )

    def run_steps(
        self, count: int, *, shares: Sequence[int], epoch: int = 0, reason: str = "given"
    ) -> SyntheticRun:
        """`count` steps with these shares, in a new view."""
        self.view += 1
        members = list(range(len(shares)))
        self.events.append(
            ViewAdopted(
                t=self.now,
                view=self.view,
                step=self.step,
                members=members,
                shares=list(shares),
                reason=reason,
            )
        )
        for _ in range(count):
            self._run_step(shares, epoch=epoch)
        self.events.append(
            EpochDone(
                t=self.now, worker=0, epoch=epoch, step=self.step, samples=sum(shares) * count
            )
        )
        return self

    def _run_step(self, shares: Sequence[int], *, epoch: int) -> None:
        compute = [self.fixed_s + b * n for b, n in zip(self.per_sample_s, shares, strict=True)]
        slowest = max(compute)
        self.now += self.data_s + slowest + self.exchange_s + self.update_s
        for worker, (own, share) in enumerate(zip(compute, shares, strict=True)):
            self.events.append(
                step_done(
                    t=self.now,
                    worker=worker,
                    step=self.step,
                    epoch=epoch,
                    view=self.view,
                    samples=share,
                    compute_s=own,
                    data_s=self.data_s,
                    exchange_s=slowest - own + self.exchange_s,
                    update_s=self.update_s,
                )
            )
        self.step += 1

    def end(self, status: str = "done", reason: str = "") -> SyntheticRun:
        """The launcher's last word."""
        self.events.append(
            RunEnded(t=self.now, status=status, reason=reason, wall_s=self.now - START)
        )
        return self

    def write(self, run_dir: Path) -> Path:
        """The run folder: one log per worker, and the launcher's."""
        logs: dict[str, EventWriter] = {}
        for event in self.events:
            is_step = isinstance(event, StepDone | EpochDone)
            source = f"worker {event.worker}" if is_step else "launcher"
            if source not in logs:
                logs[source] = EventWriter(
                    log_path(run_dir, source), run="synthetic", source=source, clock=lambda: START
                )
            logs[source].write(event)
        for log in logs.values():
            log.close()
        return run_dir
