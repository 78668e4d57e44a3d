# SPDX-License-Identifier: Apache-2.0
"""Gives a job its coordinator: a process beside the workers, replaced when it dies or hangs.

A spare stands by, which has loaded everything that takes time, and begins to serve when it is told to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gangline.engines.heartbeat import Keeper
from gangline.engines.local import LocalEngine, WorkerCommand
from gangline.eventlog import NullWriter
from gangline.files.announcement import read_announcement
from gangline.files.config import PROFILE_FILE, write_config
from gangline.files.plainfile import replace_plain
from gangline.files.tokens import write_token
from gangline.protocol.lifeline import Depart, Dissolve, ProcessEnded, Serve, Standing
from gangline.spec.errors import LaunchError
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gangline.engines.job import Job
    from gangline.engines.result import WorkerResult
    from gangline.eventlog import EventSink

MAX_RESTARTS = 20
"""A coordinator that dies so often will not live; the workers go on without it while they can."""
SPARE_AFTER_S = 5.0
"""A job that has run for so long gets a spare: before, starting one would slow its own start down."""
_NEXT_SPARE_AFTER_S = 1.0
"""The same, when the spare was needed: the survivors come first."""
_DISSOLVE_S = 0.5
"""How long the coordinator may take to tell those that joined that the job is ended."""
_GRACE_S = 0.2
"""It holds nothing that a killed coordinator would lose."""
_MAX_STILLBORN = 2
"""After so many that ended before they served, another port is tried: somebody may have taken it."""


def coordinator_process(job: Job, environment: Mapping[str, str]) -> Coordination:
    """The job's coordinator as a process beside whatever runs the workers.

    Nobody replaces it, unless somebody calls `tick` often.
    """
    return Coordination(job, environment, events=NullWriter())


class Coordination:
    """The coordinator of a job while the job runs. Does nothing for a job that has one elsewhere."""

    def __init__(self, job: Job, environment: Mapping[str, str], *, events: EventSink) -> None:
        self._job = job
        self._environment = environment
        self._events = events
        self._num_started = self._num_restarts = self._num_stillborn = 0
        self._engine = LocalEngine([], grace_s=_GRACE_S)
        self._keepers: dict[int, Keeper] = {}
        self._serving: int | None = None
        self._serving_since_s = 0.0
        self._spare_after_s = SPARE_AFTER_S
        self._spare: int | None = None
        self._ended: list[ProcessEnded] = []
        self._finished: frozenset[int] = frozenset()
        self.is_ending = False
        """Whether an operator has ordered the end of the job."""
        self._num_sending = 0
        """How many machines that joined still send their event logs, as far as is known."""
        self._dissolve_until_s = 0.0

    def __enter__(self) -> Coordination:
        write_config(self._job.config, self._job.run_dir)
        if self._job.coordinator is None:
            write_token(self._job.token_file)
            if self._job.profile is not None:
                replace_plain(self._job.run_dir / PROFILE_FILE, self._job.profile.to_json())
            self._engine.start()
            try:
                self._serve(self._start(), port=self._job.config.listen_at[1])
            except BaseException:
                self._engine.stop()
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._engine.stop()
        for keeper in self._keepers.values():
            keeper.close()

    @property
    def standing(self) -> Standing | None:
        """How the job stands, as the coordinator said last; None: that is not known."""
        keeper = None if self._serving is None else self._keepers.get(self._serving)
        return None if keeper is None else keeper.standing

    @property
    def finished(self) -> frozenset[int]:
        """The members of the job that have come to the end of their scripts."""
        return self._finished

    @property
    def has_spare(self) -> bool:
        """Whether there is a process that can take the coordinator's place at once."""
        return self._spare is not None and self._keepers[self._spare].is_loaded

    def tick(self) -> None:
        """Replaces a coordinator that has died or hangs, and sees to it that there is a spare."""
        for result in self._engine.poll():
            self._forget(result.worker)
            if result.worker == self._serving:
                self._replace(f"the coordinator ended ({result.reason})")
        serving = self._serving
        if serving is None:
            return
        fault = self._keepers[serving].look()
        standing = self.standing
        if standing is not None:
            self._finished |= {*standing.finished}
            self._num_sending = standing.num_sending
            self.is_ending = self.is_ending or standing.is_ending
            self._num_stillborn = 0
        if fault is not None:
            # Killed and reaped before there is another one: it must not come back beside it.
            self._engine.kill(serving)
            self._forget(serving)
            self._replace(f"the coordinator hangs: {fault}; it was killed")
        elif self._spare is not None:
            self._keepers[self._spare].look()
        elif time.monotonic() - self._serving_since_s > self._spare_after_s:
            self._spare = self._start()

    def tell_ended(self, result: WorkerResult) -> None:
        """A worker's process has ended: the coordinator need not wait for it."""
        ended = ProcessEnded(
            worker=result.worker,
            has_failed=result.has_failed,
            is_replaced=result.has_failed and self._job.respawns > 0,
        )
        if not result.stopped:
            self._ended.append(ended)
            if self._serving is not None:
                self._keepers[self._serving].order(ended)

    def dissolve(self, reason: str) -> None:
        """The job is ended: workers that were started elsewhere shall not wait for what never comes."""
        if self._serving is not None:
            own = tuple(range(self._job.config.num_own))
            self._keepers[self._serving].order(Dissolve(reason=reason, own=own))
            self._dissolve_until_s = time.monotonic() + _DISSOLVE_S

    def depart(self) -> None:
        """This machine is about to end: all members of the job are asked to leave it."""
        if self._serving is not None:
            self._keepers[self._serving].order(Depart())

    def await_dissolved(self) -> None:
        """Waits until those workers have been told, if they are to be told."""
        keeper = None if self._serving is None else self._keepers[self._serving]
        while keeper is not None and time.monotonic() < self._dissolve_until_s:
            keeper.look()
            if keeper.standing is None or keeper.standing.is_dissolved:
                return
            time.sleep(0.01)

    def await_sent(self, is_hurried: Callable[[], bool], *, limit_s: float) -> None:
        """Waits a while for the event logs of machines that joined, which their workers have left."""
        deadline = time.monotonic() + limit_s
        while self._num_sending and self._serving is not None:
            if time.monotonic() >= deadline or is_hurried():
                return
            time.sleep(0.02)
            self.tick()

    # --- processes -------------------------------------------------------------------------------

    def _start(self) -> int:
        """One more coordinator process, which waits for its order."""
        number, keeper = self._num_started, Keeper()
        self._num_started += 1
        try:
            self._engine.add(self._command(number, keeper.descriptor))
        except BaseException:
            keeper.close()
            raise
        keeper.started(self._engine.pid(number))
        self._keepers[number] = keeper
        return number

    def _serve(self, number: int, *, port: int) -> None:
        self._serving, self._serving_since_s = number, time.monotonic()
        keeper = self._keepers[number]
        keeper.order(Serve(port=port))
        for ended in self._ended:
            keeper.order(ended)

    def _forget(self, number: int) -> None:
        self._keepers.pop(number).close()
        if number == self._spare:
            self._spare = None
            self._serving_since_s = time.monotonic()  # not at once, if it cannot be started
            self._spare_after_s = SPARE_AFTER_S

    def _replace(self, what: str) -> None:
        may_restart = self._num_restarts < MAX_RESTARTS
        self._num_restarts += 1
        self._num_stillborn += 1
        had_spare = self.has_spare
        spare, self._spare, self._serving = self._spare, None, None
        self._spare_after_s = min(SPARE_AFTER_S, _NEXT_SPARE_AFTER_S)
        self._events.write(
            Decision(
                t=time.time(),
                what="restart_coordinator" if may_restart else "give_up_coordinator",
                reason=f"{what}; the workers go on meanwhile",
                numbers={
                    "restarts": float(self._num_restarts),
                    "had_spare": float(had_spare),
                },
            )
        )
        if may_restart:
            port = 0 if self._num_stillborn > _MAX_STILLBORN else self._last_port()
            self._serve(self._start() if spare is None else spare, port=port)
        elif spare is not None:
            self._engine.kill(spare)
            self._forget(spare)

    def _last_port(self) -> int:
        """Where it was found before: workers on other machines know no other place."""
        try:
            return urlsplit(read_announcement(self._job.run_dir).url).port or 0
        except LaunchError:
            return 0

    def _command(self, number: int, lifeline: int) -> WorkerCommand:
        job = self._job
        return WorkerCommand(
            worker=number,
            arguments=(
                *("-m", "gangline.coordinator"),
                *("--run-dir", str(job.run_dir), "--lifeline", str(lifeline)),
            ),
            environment=self._environment,
            log=job.run_dir / "coordinator.log",
            pass_fds=(lifeline,),
        )
