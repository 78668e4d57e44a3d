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
    WorkersLost,
    decide,
)
from gangline.runtime.coordinator.tally import Tally
from gangline.runtime.coordinator.watch import Watch
from gangline.runtime.messages import (
    PROTOCOL_VERSION,
    Failed,
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
        self._founders: tuple[int, ...] | None = None
        self._control: ControlState | None = None
        self._tally = Tally(())
        self._watch = Watch((), clock())
        self._seed = 0
        self._group = -1
        self._step = -1
        self._decisions: list[str] = []

    # --- connections -----------------------------------------------------------------------------

    def connect(self, hello: Hello) -> tuple[int, list[Outgoing]]:
        """A worker said hello: its number, and what to tell whom.

        Raises UsageError, for the worker to read, if it does not belong here.
        """
        self._check(hello)
        worker = hello.worker if hello.worker >= 0 else max(self._hellos, default=-1) + 1
        known = self._workers.get(worker)
        self._hellos[worker] = hello
        self._workers[worker] = WorkerStatus(
            worker=worker,
            host=hello.host,
            pid=hello.pid,
            is_connected=True,
            state="connected" if known is None or known.pid != hello.pid else known.state,
        )
        self._watch.hear(worker, self._clock())
        if self._founders is not None:
            return worker, self._catch_up(worker)
        if len(self._hellos) < self._expected:
            return worker, []
        self._founders = tuple(sorted(self._hellos))
        return worker, [Outgoing(one, self._gathered(one)) for one in self._founders]

    def disconnect(self, worker: int) -> None:
        """A worker's connection is gone; the worker itself may be well."""
        self._workers[worker].is_connected = False
        self._watch.lose_connection(worker)

    def tick(self) -> list[Outgoing]:
        """Time has passed: looks whether somebody is missing."""
        return self._look()

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
        known = self._workers.get(hello.worker)
        is_same = known is not None and (known.host, known.pid) == (hello.host, hello.pid)
        if known is not None and known.is_connected and not is_same:
            raise UsageError(
                f"worker {hello.worker} is already here (process {known.pid} on {known.host}): every "
                "process needs a number of its own"
            )

    def _gathered(self, worker: int) -> Gathered:
        assert self._founders is not None
        view = None if self._control is None else self._control.view
        members = self._founders if view is None else view.members
        is_founder = view is None and worker in members
        return Gathered(
            worker=worker,
            members=members if is_founder else tuple(m for m in members if m != worker),
            addresses=tuple(self._hellos[member].address for member in members)
            if is_founder
            else (),
        )

    def _catch_up(self, worker: int) -> list[Outgoing]:
        """What a worker that comes late, or comes back, must know."""
        missed: list[FromCoordinator] = [self._gathered(worker)]
        view = None if self._control is None else self._control.view
        if view is not None and worker in view.members:
            missed.append(self._published(PublishView(view=view)))
        return [Outgoing(worker, message) for message in missed]

    def _published(self, command: PublishView) -> ViewPublished:
        members = command.view.members
        return ViewPublished(
            view=command.view,
            addresses=tuple(self._hellos[member].address for member in members),
            seed=self._seed,
            is_recovery=command.is_recovery,
        )

    # --- messages --------------------------------------------------------------------------------

    def receive(self, worker: int, message: FromWorker) -> list[Outgoing]:
        """A worker said something after its hello."""
        self._watch.hear(worker, self._clock())
        match message:
            case Ping(sent_s=sent_s):
                return [Outgoing(worker, Pong(sent_s=sent_s))]
            case Ready():
                return self._on_ready(worker, message)
            case Measured():
                return self._on_measured(worker, message)
            case Metrics():
                return self._on_metrics(worker, message)
            case Failed():
                return self._on_failed(worker, message)
            case Goodbye():
                return self._on_goodbye(worker)
            case Hello():
                raise UsageError(f"worker {worker} said hello twice on one connection")

    def _on_ready(self, worker: int, ready: Ready) -> list[Outgoing]:
        self._ready[worker] = ready
        self._workers[worker].state = "ready"
        try:
            if self._control is not None:
                return self._take_in(worker, ready)
            if self._founders is None or not set(self._founders) <= set(self._ready):
                return []
            return self._begin(self._founders)
        except UsageError as error:
            return [Outgoing(member, Refused(reason=str(error))) for member in self._ready]

    def _begin(self, members: tuple[int, ...]) -> list[Outgoing]:
        first = self._ready[members[0]]
        options = ControlOptions(
            global_batch=first.global_batch,
            allocation=first.allocation if first.shares is None else "fixed",
            minimum=first.minimum,
            seed=first.seed,
        )
        self._seed = first.seed
        self._control = ControlState.begin(options)
        return self._decide(
            WorkersJoined(
                workers=members,
                speeds=first.shares,
                max_samples=tuple(self._ceiling(self._ready[member]) for member in members),
            )
        )

    def _take_in(self, worker: int, ready: Ready) -> list[Outgoing]:
        """A worker joins, or comes back to, the running job."""
        assert self._control is not None
        if worker in self._control.members:
            return []
        return self._decide(WorkersJoined(workers=(worker,), max_samples=(self._ceiling(ready),)))

    def _ceiling(self, ready: Ready) -> int:
        return ready.global_batch if ready.max_samples is None else ready.max_samples

    def _on_failed(self, worker: int, failed: Failed) -> list[Outgoing]:
        view = None if self._control is None else self._control.view
        if view is None:
            return []
        if worker not in view.members:  # it was put out, and is back
            return self._take_in(worker, self._ready[worker])
        if failed.group == view.group:
            self._watch.report_failure(worker, failed.error, self._clock())
        return self._look()

    def _on_goodbye(self, worker: int) -> list[Outgoing]:
        self._workers[worker].state = "gone"
        return []

    def _look(self) -> list[Outgoing]:
        """Asks the watch whether somebody is lost, and has that decided."""
        found = self._watch.find_lost(self._clock())
        if found is None or self._control is None:
            return []
        workers, reason = found
        for worker in workers:
            self._workers[worker].state = "lost"
        return self._decide(WorkersLost(workers=workers, reason=reason))

    def _on_measured(self, worker: int, report: Measured) -> list[Outgoing]:
        status = self._workers[worker]
        status.state = "training"
        status.step, status.samples = report.step, report.samples
        status.compute_s = report.compute_s
        self._watch.report_step(self._clock())
        outgoing = []
        for measured in self._tally.add(worker, report):
            self._step = measured.step
            outgoing += self._decide(measured)
        return outgoing

    def _on_metrics(self, worker: int, metrics: Metrics) -> list[Outgoing]:
        self._metrics[worker] = metrics
        members = () if self._control is None else self._control.members
        if not members or not set(members) <= set(self._metrics):
            return []
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
            view = command.view
            if view.group != self._group:
                self._group = view.group
                self._tally = Tally(view.members)
                self._watch = Watch(view.members, self._clock())
            message = self._published(command)
            return [Outgoing(worker, message) for worker in view.members]
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
