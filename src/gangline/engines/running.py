# SPDX-License-Identifier: Apache-2.0
"""Runs a job from its start to its end, and writes down in its run folder what happened.

config = RunConfig(run="digits", cluster=Cluster.of_speeds((1.0, 0.5)))
job = Job(config=config, run_dir=Path("runs/digits"), script=Path("train.py"))
result = run_job(job)
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.beyond import Beyond
from gangline.engines.coordination import Coordination
from gangline.engines.ending.worker_ends import WorkerEnds
from gangline.engines.job import Job, count_cores
from gangline.engines.local import LocalEngine
from gangline.engines.respawn import Respawner
from gangline.engines.streaming.stream import EventStream
from gangline.engines.supervision import SilentWatcher, Watcher, supervise
from gangline.eventlog import EventWriter, log_path
from gangline.files.tokens import make_token
from gangline.protocol.streaming import machine_name
from gangline.spec.errors import GanglineError
from gangline.spec.event import Decision, RunEnded, RunStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gangline.engines.engine import Engine
    from gangline.engines.result import JobResult, WorkerResult
    from gangline.eventlog import EventSink


def run_job(
    job: Job,
    *,
    environment: Mapping[str, str] | None = None,
    watcher: Watcher | None = None,
    make_engine: Callable[[Watcher], Engine] | None = None,
) -> JobResult:
    """Runs a job to its end. No process of it is left when this returns or raises.

    Its workers run on this machine, or where the engine that is made runs them.
    """
    told = watcher or SilentWatcher()
    if job.coordinator is None:
        return _run(job, environment, told, make_engine=make_engine)
    # What this machine's logs say is sent to where the job was started. The name is for everybody,
    # the key for the coordinator alone.
    key = make_token()
    named = msgspec.structs.replace(job, machine=machine_name(key))
    stream = EventStream(named, key)
    try:
        return _run(named, environment, told, stream=stream)
    finally:
        unsent = stream.finish()
        if unsent:
            told.note("keep_events", unsent)


def _run(
    job: Job,
    environment: Mapping[str, str] | None,
    watcher: Watcher,
    *,
    stream: EventStream | None = None,
    make_engine: Callable[[Watcher], Engine] | None = None,
) -> JobResult:
    base = os.environ if environment is None else environment
    path = log_path(job.run_dir, "launcher")
    started_s = time.monotonic()
    with EventWriter(path, run=job.run, source="launcher") as events:
        events.write(_run_started(job))
        try:
            with Coordination(job, base, events=events) as coordination:
                beyond = Beyond(job, coordination)
                local = _local_engine(job, base)
                ends = WorkerEnds(job, local.pid)
                recorder = _Recorder(events, watcher, coordination, beyond, ends, stream)
                engine = local if make_engine is None else make_engine(recorder)
                result = supervise(
                    engine,
                    watcher=recorder,
                    beyond=beyond,
                    survival=job.config.survival,
                    replace=Respawner(job, base, cores=count_cores(), events=events).replace,
                )
        except GanglineError as error:
            wall_s = time.monotonic() - started_s
            events.write(_run_ended(job, "failed", str(error), wall_s))
            raise
        events.write(_run_ended(job, result.status, result.reason, result.wall_s))
    return result


def _local_engine(job: Job, environment: Mapping[str, str]) -> LocalEngine:
    # Code behind a training loop must not take a job that is ended for one that is trained. Who
    # joined a job that goes on elsewhere leaves it.
    end_by = signal.SIGINT if job.coordinator is None else signal.SIGTERM
    return LocalEngine(job.commands(environment, cores=count_cores()), end_by=end_by)


class _Recorder:
    """Writes the end of each worker to the launcher's log, and passes everything on."""

    def __init__(
        self,
        events: EventSink,
        watcher: Watcher,
        coordination: Coordination,
        beyond: Beyond,
        ends: WorkerEnds,
        stream: EventStream | None,
    ) -> None:
        self._events = events
        self._watcher = watcher
        self._coordination = coordination
        self._beyond = beyond
        self._ends = ends
        self._stream = stream
        self._main = -1
        self._come = 0

    def tick(self) -> None:
        self._coordination.tick()
        main = self._beyond.main
        if main not in (-1, self._main):
            self._main = main
            self.main_is(main)
        come = self._beyond.come
        if come not in (0, self._come):
            self._come = come
            self.begins(come)
        news = "" if self._stream is None else self._stream.take_news()
        if news:
            self.note("keep_events", news)
        self._watcher.tick()

    def begins(self, come: int) -> None:
        self._watcher.begins(come)

    def main_is(self, worker: int) -> None:
        self._watcher.main_is(worker)

    def note(self, what: str, reason: str, **numbers: float) -> None:
        counts = {name: float(number) for name, number in numbers.items()}
        self._events.write(Decision(t=time.time(), what=what, reason=reason, numbers=counts))
        self._watcher.note(what, reason, **numbers)

    def worker_ended(self, result: WorkerResult) -> None:
        self._events.write(self._ends.event_of(result))
        self._coordination.tell_ended(result)
        self._watcher.worker_ended(result)


def _run_started(job: Job) -> RunStarted:
    return RunStarted(
        t=time.time(),
        command=list(job.program),
        workers=len(job.speeds),
        nodes=[node.name for node in job.config.cluster.worker_nodes],
        speeds=list(job.speeds),
        scale=job.scale,
        is_joining=job.coordinator is not None,
    )


def _run_ended(job: Job, status: str, reason: str, wall_s: float) -> RunEnded:
    return RunEnded(
        t=time.time(),
        status=status,
        reason=reason,
        wall_s=wall_s,
        is_joining=job.coordinator is not None,
    )
