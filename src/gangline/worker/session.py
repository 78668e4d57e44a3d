# SPDX-License-Identifier: Apache-2.0
"""The process's part in a job: who it is, whom it exchanges with, where its events go."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gangline.collectives import SoloGroup
from gangline.collectives.mpi.library import outlives_losses
from gangline.collectives.transports import (
    DEFAULT_TRANSPORT,
    Door,
    check_transport,
    open_door,
)
from gangline.eventlog import EventWriter, NullWriter, SampledWriter, log_path
from gangline.protocol.messages import PROTOCOL_VERSION, Goodbye, Hello
from gangline.protocol.reaching import interface_towards
from gangline.spec.config import AUTO
from gangline.spec.errors import LaunchError, LeftBehindError
from gangline.worker.environment import find_place
from gangline.worker.gradients.communicator import Communicator
from gangline.worker.groups.founding import meet, report
from gangline.worker.groups.leaving import farewell
from gangline.worker.line.client import ControlClient
from gangline.worker.line.isolation import ALONE_S
from gangline.worker.memory import ending_error
from gangline.worker.telling.utilisation import UtilisationThread

if TYPE_CHECKING:
    from gangline.collectives import Group
    from gangline.coordinator.server import CoordinatorServer
    from gangline.eventlog import EventSink
    from gangline.spec.errors import ExchangeError
    from gangline.spec.event import Event
    from gangline.spec.wire import WireSettings
    from gangline.worker.loop.training import Training
    from gangline.worker.place import Place

_COORDINATOR_WAIT_S = 30.0
MPI = "mpi"
_GOODBYES_S = 3.0
"""How long a worker that serves the coordinator itself stays for the others."""


@dataclass(slots=True)
class Session:
    """Everything about this process that outlives a model."""

    place: Place
    communicator: Communicator
    events: EventSink
    client: ControlClient | None = None
    """The line to the coordinator; None for a job of one."""
    door: Door | None = None
    is_late: bool = False
    """Whether the job was running when this worker came."""
    gathering: int = 0
    """Before the first view: how often the founders had to gather again."""
    timeout_s: float = 0.0
    """How long others may take to come."""
    exchange_s: float = 0.0
    """How long exchanging the gradients will take, by a probe of the founders; 0: there was none."""
    utilisation: UtilisationThread | None = None
    """Looks how busy the process is, where there is a log to write that to."""

    def watch_utilisation(self) -> None:
        """From here on the log says how busy this process and its machine are."""
        if self.utilisation is None and not isinstance(self.events, NullWriter):
            self.utilisation = UtilisationThread(self.place.worker, self.events)

    @property
    def group(self) -> Group:
        return self.communicator.group

    def found_again(self, error: ExchangeError) -> None:
        """The founders lost each other: they meet again. Raises the error where they cannot."""
        assert self.client is not None
        assert self.door is not None
        report(self.client, self.gathering, error)
        gathered, group = meet(
            self.client,
            self.door,
            run=self.place.run,
            structure=self.place.config.exchange.tree,
            timeout_s=self.timeout_s,
            after=self.gathering,
        )
        self.gathering = gathered.attempt
        self.is_late = self.place.worker not in gathered.members
        self.communicator.renew(group)
        if self.client.gathering > gathered.attempt:  # it came while there was nothing to abort
            group.abort()

    def met_again(self, error: ExchangeError, *, what: str) -> None:
        """As `found_again`, in a call that only founders make, before there is a view.

        Raises LeftBehindError where the others went on without this worker: what it has missed is
        not told again. It ends alone, and the job goes on.
        """
        self.found_again(error)
        if self.is_late:
            raise LeftBehindError(
                f"{what}: this worker did not answer for too long, and the others went on without it. "
                "It cannot catch up with what they did before prepare(), and ends; the job goes on. "
                "When they train, `gangline join` starts a worker in its place"
            )

    def record(self, event: Event) -> None:
        """Writes an event to this worker's log."""
        self.events.write(event)

    def say_goodbye(self, training: Training | None) -> None:
        """Tells the coordinator why this worker ends, and where, if its script ends by itself.

        Before anything is closed: the others must not take it for one that was lost.
        """
        if self.client is None:
            return
        is_script = training is not None and training.is_ended_by_script and ending_error() is None
        position = tuple(training.position) if training is not None and is_script else ()
        is_behind = training is not None and training.is_ended_behind
        reason = farewell(has_left=training is not None and training.has_left, is_behind=is_behind)
        self.client.say_goodbye(Goodbye(reason=reason, position=position))

    def close(self) -> None:
        """Ends all threads, closes all sockets and the log."""
        if self.utilisation is not None:
            self.utilisation.close()
        self.communicator.close()
        if self.client is not None:
            self.client.close()
        if self.door is not None:
            self.door.close()
        if self.place.own_coordinator is not None:
            _await_goodbyes(self.place.own_coordinator)
            self.place.own_coordinator.stop()
        self.events.close()


def open_session(
    *, transport: str | None, run_dir: str | None, timeout_s: float, wire: WireSettings | None
) -> Session:
    """Finds this process's place, connects it with the others, and opens its event log."""
    if transport is not None:
        check_transport(transport)
    place = find_place(os.environ, timeout_s=timeout_s)
    if place.find_coordinator is None:
        return Session(place, Communicator(SoloGroup()), _open_log(place, run_dir))
    name = transport or place.config.exchange.transport or DEFAULT_TRANSPORT
    if name == MPI and (place.replaces >= 0 or not 0 <= place.worker < place.workers):
        name = DEFAULT_TRANSPORT  # MPI's world is fixed: whoever comes later is no part of it
    settings = wire or place.config.wire
    door = open_door(
        name,
        host=_interface(place),
        token=place.token,
        timeout_s=timeout_s,
        settings=settings,
    )
    communicator = Communicator(SoloGroup())
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        run=place.run,
        worker=place.worker,
        host=socket.gethostname(),
        pid=os.getpid(),
        address=door.address,
        is_elastic=place.is_elastic and _lets_go(name),
        replaces=place.replaces,
        machine=place.machine,
    )
    client = ControlClient(
        place.find_coordinator,
        token=place.token,
        hello=hello,
        authority=place.config.wire.authority,
        break_off=lambda *before: _break_off(communicator, door, before=before),
        waiting_s=lambda: communicator.waiting_s,
        alone_s=min(ALONE_S, timeout_s / 2),
        max_away_s=place.config.survival.max_away_s,
        ports=settings.ports,
    )
    try:
        gathered, communicator.group = meet(
            client, door, run=place.run, structure=place.config.exchange.tree, timeout_s=timeout_s
        )
    except BaseException:
        client.close("could not join")
        door.close()
        raise
    if client.gathering > gathered.attempt:  # it came while there was nothing to abort
        communicator.group.abort()
    place = replace(place, worker=gathered.worker)
    return Session(
        place,
        communicator,
        _open_log(place, run_dir),
        client,
        door,
        is_late=place.worker not in gathered.members,
        gathering=gathered.attempt,
        timeout_s=timeout_s,
    )


def _lets_go(transport: str) -> bool:
    """Whether workers may come and go with a transport."""
    return transport.startswith("wire") or (transport == MPI and outlives_losses())


def _await_goodbyes(server: CoordinatorServer) -> None:
    """Others that still train must be told why this worker is not there any more."""
    deadline = time.monotonic() + _GOODBYES_S
    while time.monotonic() < deadline and server.driver.coordinator.has_workers:
        time.sleep(0.02)


def _break_off(communicator: Communicator, door: Door, *, before: tuple[int, int]) -> None:
    """Ends whatever this worker exchanges, or waits for, in groups that are no more."""
    door.give_up(before=before)
    communicator.group.abort()


def _open_log(place: Place, run_dir: str | None) -> EventSink:
    folder = run_dir or place.run_dir
    if folder is None:
        return NullWriter()
    source = f"worker {place.worker}"
    asked = place.config.events
    log = EventWriter(
        log_path(Path(folder), source),
        run=place.run,
        source=source,
        max_bytes=asked.file_mib << 20,
    )
    if asked.steps == "full":
        return log
    return SampledWriter(log) if asked.steps == AUTO else SampledWriter(log, full_steps=0)


def _interface(place: Place) -> str:
    """The interface on which this worker listens: the one that faces the coordinator."""
    assert place.find_coordinator is not None
    deadline = time.monotonic() + _COORDINATOR_WAIT_S
    while True:
        try:
            parts = urlsplit(place.find_coordinator())
        except LaunchError:  # it may still be starting
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return interface_towards(parts.hostname or "127.0.0.1", parts.port or 0)


def now() -> float:
    """The time that events carry."""
    return time.time()
