# SPDX-License-Identifier: Apache-2.0
"""What the coordinator does with each message: no sockets and no threads here.

Every method returns the messages that shall be sent because of it; the server delivers them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from gangline.control import (
    Command,
    ControlEvent,
    ControlOptions,
    ControlState,
    MetricsMeasured,
    PublishView,
    WorkersJoined,
    decide,
)
from gangline.runtime.coordinator.tally import Tally
from gangline.runtime.messages import (
    PROTOCOL_VERSION,
    FromCoordinator,
    FromWorker,
    Gathered,
    Goodbye,
    Hello,
    Measured,
    Metrics,
    Ping,
    Pong,
    Ready,
    Refused,
    ViewPublished,
)
from gangline.spec.errors import UsageError
from gangline.spec.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.eventlog import EventSink


class Outgoing(NamedTuple):
    """A message, and the worker that it goes to."""

    worker: int
    message: FromCoordinator


class WorkerStatus(msgspec.Struct, kw_only=True):
    """What the coordinator knows of one worker."""

    worker: int
    host: str
    pid: int
    is_connected: bool
    state: str
    """`connected`, `ready`, `training` or `gone`."""
    step: int = -1
    """The last step that it reported."""
    samples: int = 0
    compute_s: float = 0.0


class Status(msgspec.Struct, kw_only=True):
    """What `gangline status` shows."""

    run: str
    expected_workers: int
    workers: list[WorkerStatus]
    view: View | None
    step: int
    """The last step that all members reported."""
    decisions: list[str]
    """The latest reasons, newest last."""


class Hub:
    """The coordinator's mind and memory."""

    def __init__(
        self,
        *,
        run: str,
        expected_workers: int,
        events: EventSink,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._expected = expected_workers
        self._events = events
        self._clock = clock
        self._workers: dict[int, WorkerStatus] = {}
        self._hellos: dict[int, Hello] = {}
        self._ready: dict[int, Ready] = {}
        self._metrics: dict[int, Metrics] = {}
        self._control: ControlState | None = None
        self._tally = Tally(())
        self._step = -1
        self._decisions: list[str] = []

    # --- connections -----------------------------------------------------------------------------

    def connect(self, hello: Hello) -> list[Outgoing]:
        """A worker said hello. Raises UsageError, for the worker to read, if it does not belong."""
        self._check(hello)
        self._hellos[hello.worker] = hello
        known = self._workers.get(hello.worker)
        self._workers[hello.worker] = WorkerStatus(
            worker=hello.worker,
            host=hello.host,
            pid=hello.pid,
            is_connected=True,
            state=known.state if known else "connected",
        )
        if known is not None:  # it lost the connection: tell it again what it may have missed
            return self._catch_up(hello.worker)
        if len(self._hellos) < self._expected:
            return []
        return [Outgoing(worker, self._gathered()) for worker in sorted(self._hellos)]

    def disconnect(self, worker: int) -> None:
        """A worker's connection is gone; the worker itself may be well."""
        self._workers[worker].is_connected = False

    def _check(self, hello: Hello) -> None:
        if hello.protocol != PROTOCOL_VERSION:
            raise UsageError(
                f"worker {hello.worker} speaks protocol {hello.protocol}, this coordinator "
                f"{PROTOCOL_VERSION}: install the same gangline everywhere"
            )
        if hello.run != self._run:
            raise UsageError(
                f"worker {hello.worker} belongs to run {hello.run!r}, this is the coordinator of run "
                f"{self._run!r}: check the address"
            )
        if not 0 <= hello.worker < self._expected:
            raise UsageError(
                f"worker {hello.worker} is not one of the {self._expected} workers of this run"
            )
        known = self._workers.get(hello.worker)
        if known is not None and (known.host, known.pid) != (hello.host, hello.pid):
            raise UsageError(
                f"worker {hello.worker} is already here (process {known.pid} on {known.host}): every "
                "process needs a number of its own"
            )

    def _gathered(self) -> Gathered:
        members = tuple(sorted(self._hellos))
        return Gathered(
            members=members, addresses=tuple(self._hellos[worker].address for worker in members)
        )

    def _catch_up(self, worker: int) -> list[Outgoing]:
        missed: list[FromCoordinator] = []
        if len(self._hellos) == self._expected:
            missed.append(self._gathered())
        if self._control is not None and self._control.view is not None:
            missed.append(ViewPublished(view=self._control.view))
        return [Outgoing(worker, message) for message in missed]

    # --- messages --------------------------------------------------------------------------------

    def receive(self, worker: int, message: FromWorker) -> list[Outgoing]:
        """A worker said something after its hello."""
        match message:
            case Ping(sent_s=sent_s):
                return [Outgoing(worker, Pong(sent_s=sent_s))]
            case Ready():
                return self._on_ready(worker, message)
            case Measured():
                return self._on_measured(worker, message)
            case Metrics():
                return self._on_metrics(worker, message)
            case Goodbye():
                self._workers[worker].state = "gone"
                return []
            case Hello():
                raise UsageError(f"worker {worker} said hello twice on one connection")

    def _on_ready(self, worker: int, ready: Ready) -> list[Outgoing]:
        self._ready[worker] = ready
        self._workers[worker].state = "ready"
        if len(self._ready) < self._expected or self._control is not None:
            return []
        members = tuple(sorted(self._ready))
        first = self._ready[members[0]]
        try:
            options = ControlOptions(
                global_batch=first.global_batch,
                allocation=first.allocation if first.shares is None else "fixed",
                minimum=first.minimum,
                seed=first.seed,
            )
            self._control = ControlState.begin(options)
            self._tally = Tally(members)
            ceilings = [self._ready[member].max_samples for member in members]
            return self._decide(
                WorkersJoined(
                    workers=members,
                    speeds=first.shares,
                    max_samples=tuple(
                        first.global_batch if ceiling is None else ceiling for ceiling in ceilings
                    ),
                )
            )
        except UsageError as error:
            return [Outgoing(member, Refused(reason=str(error))) for member in members]

    def _on_measured(self, worker: int, report: Measured) -> list[Outgoing]:
        status = self._workers[worker]
        status.state = "training"
        status.step, status.samples = report.step, report.samples
        status.compute_s = report.compute_s
        outgoing = []
        for measured in self._tally.add(worker, report):
            self._step = measured.step
            outgoing += self._decide(measured)
        return outgoing

    def _on_metrics(self, worker: int, metrics: Metrics) -> list[Outgoing]:
        self._metrics[worker] = metrics
        if self._control is None or len(self._metrics) < self._expected:
            return []
        members = tuple(sorted(self._metrics))
        rows = [self._metrics[member] for member in members]
        return self._decide(
            MetricsMeasured(
                workers=members,
                operations_per_s=np.array([row.operations_per_s for row in rows]),
                memory_bytes=np.array([row.memory_bytes for row in rows]),
                latency_s=np.array([row.latency_s for row in rows]),
            )
        )

    # --- decisions -------------------------------------------------------------------------------

    def _decide(self, event: ControlEvent) -> list[Outgoing]:
        assert self._control is not None
        self._control, commands = decide(self._control, event, self._clock())
        outgoing = []
        for command in commands:
            outgoing += self._carry_out(command)
        return outgoing

    def _carry_out(self, command: Command) -> list[Outgoing]:
        if isinstance(command, PublishView):
            message = ViewPublished(view=command.view)
            return [Outgoing(worker, message) for worker in command.view.members]
        self._events.write(command.decision)
        self._decisions = [*self._decisions, command.decision.reason][-20:]
        return []

    def status(self) -> Status:
        """A snapshot for people."""
        return Status(
            run=self._run,
            expected_workers=self._expected,
            workers=[self._workers[worker] for worker in sorted(self._workers)],
            view=None if self._control is None else self._control.view,
            step=self._step,
            decisions=self._decisions,
        )
