# SPDX-License-Identifier: Apache-2.0
"""The workers of a job on other machines: an engine like the local one, over lines to their hosts.

A host that is lost costs its workers, and the job goes on. It is tried again, as those are that could
not be reached at first; whoever comes then joins, with numbers that nobody had before.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.hosts.introduction import Introduction
from gangline.engines.local import WorkerCommand
from gangline.engines.logtail import last_traceback
from gangline.engines.result import WorkerResult
from gangline.eventlog import log_path
from gangline.files.plainfile import open_plain
from gangline.protocol.agents import Ended, Kill, Start, Wrote
from gangline.protocol.launch import Launch
from gangline.spec.config import MAX_LATE
from gangline.spec.enclosure import Enclosure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from gangline.engines.hosts.seat import Seat
    from gangline.engines.job import Job
    from gangline.engines.supervision import Watcher

END_BY = signal.SIGINT
GRACE_S = 0.8
"""As on this machine: how long workers may take to end when they are asked to."""
_NETWORK_S = 4.0
"""How much longer than the grace it may take until all ends are heard."""
_KILL_S = 5.0
_POLL_S = 0.02


class HostsEngine:
    """The processes of one job on its hosts. As a context manager it ends what still runs."""

    def __init__(
        self,
        job: Job,
        seats: Sequence[Seat],
        *,
        watcher: Watcher,
        arrivals: Callable[[Watcher], Sequence[Seat]] = lambda watcher: (),
    ) -> None:
        """`arrivals` gives hosts that nobody knew of when the job began, as they come."""
        self._job = job
        self._arrivals = arrivals
        self._seats = {seat.host.name: seat for seat in seats}
        self._watcher = watcher
        self._introduction = Introduction(job, seats)
        self._running: dict[int, Seat] = {}
        self._pending: list[WorkerCommand] = []
        self._results: dict[int, WorkerResult] = {}
        self._num_late = 0
        self._done: set[str] = set()
        """The hosts of which workers have ended by themselves: they get no others."""
        self._calling: set[str] = set()
        self._stopping = False

    def __enter__(self) -> HostsEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> tuple[int, ...]:
        """The workers that have not ended, as of the last `poll`."""
        return tuple(self._running)

    @property
    def results(self) -> tuple[WorkerResult, ...]:
        """The workers that have ended, in worker order."""
        return tuple(self._results[worker] for worker in sorted(self._results))

    def start(self) -> None:
        """All workers are to be started, as soon as the coordinator is there."""
        for command in self._job.commands({}, cores=1):
            self.add(command)

    def add(self, command: WorkerCommand) -> None:
        """One more worker, on the host that its enclosure names."""
        seat = self._seats[command.enclosure.host or ""]
        self._running[command.worker] = seat
        seat.workers.add(command.worker)
        self._pending.append(command)

    def poll(self) -> list[WorkerResult]:
        """The workers that have ended since the last call. Never blocks for long."""
        ended: list[WorkerResult] = []
        for seat in self._arrivals(self._watcher):
            self._seats[seat.host.name] = seat
            self._introduction.add(seat)
        self._introduction.look()
        for seat in self._seats.values():
            for message in seat.look():
                if isinstance(message, Wrote):
                    self._keep(message)
                elif self._running.get(message.worker) is seat:  # nobody ends twice
                    ended.append(self._note_ended(message))
            ended += self._note_lost(seat)
            self._introduction.introduce(seat)
            self._note_calling(seat)
        if not self._stopping:
            self._take_in()
            self._start_pending()
        return ended

    def kill(self, worker: int, *, note: str | None = None) -> WorkerResult:
        """Kills a running worker, and waits until that is known."""
        self._running[worker].say(Kill(worker=worker))
        deadline = time.monotonic() + _KILL_S
        while worker in self._running and time.monotonic() < deadline:
            self.poll()
            time.sleep(_POLL_S)
        known = self._results.get(worker) or self._lose(worker, "it does not end")
        self._results[worker] = msgspec.structs.replace(known, note=note or known.note)
        return self._results[worker]

    def is_stopped(self, worker: int) -> bool:
        """Whether a worker is stopped by a signal: that is not seen from here."""
        return False

    def ask_to_end(self) -> None:
        """The coordinator asks workers to leave, wherever they are: nothing more is needed."""

    def wait(
        self, timeout_s: float | None = None, *, is_hurried: Callable[[], bool] = lambda: False
    ) -> bool:
        """Waits until all workers have ended, or the time is over; says whether they have."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self.poll()
            if not self._running:
                return True
            if is_hurried() or (deadline is not None and time.monotonic() >= deadline):
                return False
            time.sleep(_POLL_S)

    def stop(self, *, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Ends all workers and agents: asks first, and hangs up after the grace."""
        self._stopping = True
        self._pending.clear()
        for seat in self._seats.values():
            seat.end()
        self.wait(GRACE_S + _NETWORK_S, is_hurried=is_hurried)
        lines = [line for seat in self._seats.values() if (line := seat.close()) is not None]
        deadline = time.monotonic() + (0.0 if is_hurried() else _NETWORK_S)
        for line in lines:
            line.await_end(deadline)
        for worker in tuple(
            self._running
        ):  # its agent ends it, when it finds that the line is gone
            self._lose(worker, "its host was not heard any more")

    # --- who ends --------------------------------------------------------------------------------

    def _note_ended(self, ended: Ended) -> WorkerResult:
        worker = ended.worker
        self._done.add(self._running[worker].host.name)
        has_failed = ended.exit_code != 0 and not self._stopping
        return self._conclude(
            WorkerResult(
                worker=worker,
                exit_code=ended.exit_code,
                signal=ended.signal,
                stopped=self._stopping,
                traceback=last_traceback(self._job.log_of(worker)) if has_failed else None,
            )
        )

    def _note_lost(self, seat: Seat) -> list[WorkerResult]:
        """A host that had workers is gone, and they are lost."""
        if seat.is_ready or not seat.workers:
            return []
        name, problem = seat.host.name, seat.problem or "its line is closed"
        self._done.discard(name)
        if not self._stopping:
            reason = f"host {name} is lost: {problem}"
            self._watcher.note("lose_host", reason, workers=len(seat.workers))
        return [self._lose(one, f"host {name}: {problem}") for one in sorted(seat.workers)]

    def _lose(self, worker: int, why: str) -> WorkerResult:
        self._pending = [one for one in self._pending if one.worker != worker]
        return self._conclude(
            WorkerResult(
                worker=worker,
                exit_code=None,
                signal=None,
                stopped=self._stopping,
                note=None if self._stopping else why,
                is_lost=True,
            )
        )

    def _conclude(self, result: WorkerResult) -> WorkerResult:
        self._running.pop(result.worker).workers.discard(result.worker)
        self._results[result.worker] = result
        return result

    # --- who begins ------------------------------------------------------------------------------

    def _start_pending(self) -> None:
        for command in [one for one in self._pending if self._running[one.worker].is_met]:
            self._pending.remove(command)
            seat = self._running[command.worker]
            launch = Launch.from_environment(command.environment)
            assert launch is not None
            seat.say(
                Start(
                    launch=launch,
                    environment=command.enclosure.variables,
                    neighbours=len(seat.workers),
                )
            )

    def _note_calling(self, seat: Seat) -> None:
        name = seat.host.name
        if seat.is_met and seat.calls_out and name not in self._calling:
            self._calling.add(name)
            reason = f"host {name} is not reached by others: its workers open all connections"
            self._watcher.note("call_out", reason)

    def _take_in(self) -> None:
        """Hosts that have come late, or have come back, get workers, while the job goes on."""
        if any(result.exit_code == 0 for result in self._results.values()):
            return
        for name, seat in self._seats.items():
            if not seat.is_ready or seat.here is None or seat.workers or name in self._done:
                continue
            count = min(seat.host.num_workers(seat.here.devices), self._room)
            if count < 1:
                continue
            reason = f"host {name} has come: {count} more {'worker' if count == 1 else 'workers'}"
            self._watcher.note("take_in_host", reason, workers=count)
            for variables in worker_variables(seat, count):
                self.add(self._newcomer(name, variables))

    @property
    def _room(self) -> int:
        """How many more workers may be started."""
        most = self._job.config.hosts.max_workers
        left = MAX_LATE - self._num_late
        return left if most is None else min(left, most - len(self._running))

    def _newcomer(self, host: str, variables: dict[str, str]) -> WorkerCommand:
        number = self._job.config.num_own - MAX_LATE + self._num_late
        self._num_late += 1
        launch = msgspec.structs.replace(self._job.launches()[0], worker=number, faults=())
        return WorkerCommand(
            worker=number,
            arguments=(),
            environment=launch.to_environment(),
            log=self._job.log_of(number),
            enclosure=Enclosure(host=host, variables=variables),
        )

    def _keep(self, wrote: Wrote) -> None:
        job, worker = self._job, wrote.worker
        path = log_path(job.run_dir, f"worker {worker}") if wrote.is_event else job.log_of(worker)
        _append(path, wrote.data)


def worker_variables(seat: Seat, count: int) -> list[dict[str, str]]:
    """The variables of each worker of a host: the host's own, and which GPU is the worker's."""
    devices = seat.host.chosen_devices(0 if seat.here is None else seat.here.devices)
    if not devices:
        return [seat.host.environment] * count
    return [
        {"CUDA_VISIBLE_DEVICES": str(devices[index % len(devices)]), **seat.host.environment}
        for index in range(count)
    ]


def _append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
        file.write(data)
