# SPDX-License-Identifier: Apache-2.0
"""The agent on a host: does what its launcher says, and ends its workers when the line is gone.

Whatever happens to the launcher, to ssh or to the network, the line is closed or silent then. However
the agent itself ends, the workers that it started end with it, as those of any launcher do.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import socket
import sys
import time
from pathlib import Path

from gangline.engines.agent.examination import Examination, dial_all, version_of
from gangline.engines.agent.place import HostPlace
from gangline.engines.agent.tails import Tails
from gangline.engines.job import count_cores, thread_environment
from gangline.engines.local import LocalEngine, WorkerCommand
from gangline.protocol.agents import (
    AGENT_VERSION,
    BEAT_S,
    MAX_BACKLOG_BYTES,
    SILENCE_S,
    Beat,
    Brief,
    Briefed,
    Channel,
    Coordinator,
    Dial,
    End,
    Ended,
    Examine,
    File,
    FromLauncher,
    Here,
    Kill,
    Met,
    Ready,
    Start,
    Unfit,
)
from gangline.spec.errors import GanglineError, LaunchError
from gangline.version import VERSION

_POLL_S = 0.05
_FAREWELL_S = 3.0
"""How long the launcher may take to read what was said last."""
_GPUS = Path("/proc/driver/nvidia/gpus")


class Agent:
    """One launcher's workers on this host."""

    def __init__(
        self, channel: Channel[FromLauncher], *, beside: int = 1, pass_fds: tuple[int, ...] = ()
    ) -> None:
        """`beside` is how many agents of the launcher share this machine, with this one.

        Workers are given the descriptors `pass_fds`, which whoever started the agent has opened.
        """
        self._channel = channel
        self._pass_fds = pass_fds
        self._beside = beside
        self._place: HostPlace | None = None
        self._engine: LocalEngine | None = None
        self._tails: Tails | None = None
        self._untold: list[Ended] = []
        self._examination: Examination | None = None
        self._heard_s = self._beat_s = time.monotonic()
        self._is_over = False
        self._num_asked = 0
        self._is_departing = False

    def depart(self) -> None:
        """This place is given back: workers leave their job, and then the agent ends. A handler.

        Who asks twice does not want to wait.
        """
        self._num_asked += 1
        self._is_over = self._num_asked > 1

    def run(self, descriptor: int) -> bool:
        """Until the launcher says so, or is gone; whether it has said so."""
        try:
            while not self._is_over and not self._is_deserted():
                select.select([descriptor], [], [], _POLL_S)
                for message in self._channel.receive():
                    self._heard_s = time.monotonic()
                    self._do(message)
                self._look_whether_departing()
                self._tell()
        except GanglineError as error:
            self._channel.send(Unfit(reason=str(error)))
        finally:
            self._end()
        return self._is_over

    def _look_whether_departing(self) -> None:
        if self._num_asked and not self._is_departing:
            self._is_departing = True
            if self._engine is not None:
                self._engine.ask_to_end()
        if self._is_departing and (self._engine is None or not self._engine.running):
            self._is_over = True

    def _is_deserted(self) -> bool:
        return self._channel.is_closed or time.monotonic() - self._heard_s > SILENCE_S

    def _do(self, message: FromLauncher) -> None:
        match message:
            case Brief():
                self._prepare(message)
            case File():
                self._given_place().write(message)
            case Briefed():
                place = self._given_place()
                place.check()
                self._channel.send(Ready(run_dir=str(place.run_dir)))
            case Coordinator():
                self._given_place().meet(message)
                self._channel.send(Met(calls_out=self._given_place().calls_out))
            case Start():
                self._start(message)
            case Kill(worker=worker):
                if self._engine is not None and worker in self._engine.running:
                    self._note_ended(self._engine.kill(worker).worker)
            case End():
                self._is_over = True
            case Examine():
                self._examination = Examination(message)
                self._channel.send(self._examination.result())
            case Dial(places=places):
                self._channel.send(dial_all(places))
            case Beat():
                pass

    def _given_place(self) -> HostPlace:
        if self._place is None:
            raise LaunchError("the launcher gave an order before it said what run it is")
        return self._place

    def _prepare(self, brief: Brief) -> None:
        place = self._place = HostPlace(brief)
        os.chdir(place.folder)
        end_by = signal.Signals(brief.end_by)
        self._engine = LocalEngine([], grace_s=brief.grace_s, end_by=end_by)
        self._engine.start()
        self._tails = Tails(place.run_dir)

    def _start(self, start: Start) -> None:
        place = self._given_place()
        assert self._engine is not None
        assert self._tails is not None
        base = {**os.environ, **start.environment}
        num_workers = start.neighbours * self._beside
        threads = thread_environment(base, speeds=(1.0,) * num_workers, cores=count_cores())
        worker = start.launch.worker
        self._engine.add(
            WorkerCommand(
                worker=worker,
                arguments=place.program,
                environment={
                    **base,
                    **threads,
                    **place.variables,
                    "PYTHONUNBUFFERED": "1",
                    **place.own(start.launch).to_environment(),
                },
                log=self._tails.log_of(worker),
                pass_fds=self._pass_fds,
            )
        )
        self._tails.follow(worker)

    # --- what is told ----------------------------------------------------------------------------

    def _tell(self) -> None:
        """Sends what is new; an end only after all that the worker wrote."""
        now = time.monotonic()
        if now - self._beat_s > BEAT_S:
            self._beat_s = now
            self._channel.send(Beat())
        self._channel.flush()
        if self._engine is None or self._tails is None:
            return
        for result in self._engine.poll():
            self._note_ended(result.worker)
        if self._channel.backlog < MAX_BACKLOG_BYTES:
            for wrote in self._tails.take():
                self._channel.send(wrote)
        for ended in [one for one in self._untold if self._tails.is_read(one.worker)]:
            self._untold.remove(ended)
            self._channel.send(ended)

    def _note_ended(self, worker: int) -> None:
        assert self._engine is not None
        result = next(one for one in self._engine.results if one.worker == worker)
        self._untold.append(Ended(worker=worker, exit_code=result.exit_code, signal=result.signal))

    def _end(self) -> None:
        """Ends all workers, removes what is secret, and tells the rest where somebody listens."""
        if self._engine is not None:
            told = {one.worker for one in self._engine.results}
            self._engine.stop()
            for result in self._engine.results:
                if result.worker not in told:
                    self._note_ended(result.worker)
        if self._place is not None:
            self._place.forget()
        if self._examination is not None:
            self._examination.close()
        deadline = time.monotonic() + _FAREWELL_S
        self._tell()
        while not self._channel.is_closed and time.monotonic() < deadline:
            if not self._untold and not self._channel.backlog:
                break
            time.sleep(_POLL_S)
            self._tell()


def describe() -> Here:
    """What this host is, as far as it can be seen at once."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    is_known = len(connection) == 4
    return Here(
        version=AGENT_VERSION,
        gangline=VERSION,
        python=platform.python_version(),
        hostname=socket.gethostname(),
        clock_s=time.time(),
        torch=version_of("torch"),
        devices=len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0,
        seen_from=connection[0] if is_known else None,
        seen_at=connection[2] if is_known else None,
    )


def main() -> None:
    """Speaks with the launcher over standard input and output."""
    outgoing = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may come between
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    channel: Channel[FromLauncher] = Channel(sys.stdin.fileno(), outgoing, FromLauncher)
    channel.send(describe())
    Agent(channel).run(sys.stdin.fileno())
