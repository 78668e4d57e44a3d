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

from gangline.collectives import GroupKey, OutsiderGroup, SoloGroup
from gangline.eventlog import EventWriter, NullWriter, log_path
from gangline.runtime.client import ControlClient
from gangline.runtime.communicator import Communicator
from gangline.runtime.environment import find_launch
from gangline.runtime.messages import PROTOCOL_VERSION, Gathered, Hello
from gangline.runtime.place import Place, place_of
from gangline.runtime.transports import (
    DEFAULT_TRANSPORT,
    Door,
    check_transport,
    interface_towards,
    make_group,
    open_door,
)
from gangline.spec.errors import LaunchError
from gangline.spec.wire import WireSettings

if TYPE_CHECKING:
    from gangline.collectives import Group
    from gangline.eventlog import EventSink
    from gangline.spec.event import Event

_COORDINATOR_WAIT_S = 30.0


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

    @property
    def group(self) -> Group:
        return self.communicator.group

    def record(self, event: Event) -> None:
        """Writes an event to this worker's log."""
        self.events.write(event)

    def close(self) -> None:
        """Ends all threads, closes all sockets and the log."""
        self.communicator.close()
        if self.client is not None:
            self.client.close()
        if self.door is not None:
            self.door.close()
        if self.place.own_coordinator is not None:
            self.place.own_coordinator.stop()
        self.events.close()


def open_session(
    *, transport: str | None, run_dir: str | None, timeout_s: float, wire: WireSettings | None
) -> Session:
    """Finds this process's place, connects it with the others, and opens its event log."""
    if transport is not None:
        check_transport(transport)
    place = place_of(find_launch(os.environ), timeout_s=timeout_s)
    if place.find_coordinator is None:
        return Session(place, Communicator(SoloGroup()), _open_log(place, run_dir))
    name = transport or place.transport or DEFAULT_TRANSPORT
    door = open_door(
        name,
        host=_interface(place),
        token=place.token,
        timeout_s=timeout_s,
        settings=wire or place.wire or WireSettings(),
    )
    communicator = Communicator(SoloGroup())
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        run=place.run,
        worker=place.worker,
        host=socket.gethostname(),
        pid=os.getpid(),
        address=door.address,
        is_elastic=place.launcher == "gangline" and name.startswith("wire"),
    )
    client = ControlClient(
        place.find_coordinator,
        token=place.token,
        hello=hello,
        break_off=lambda group: _break_off(communicator, door, before=group),
    )
    try:
        gathered = client.wait_gathered(timeout_s)
        place = replace(place, worker=gathered.worker)
        is_late = place.worker not in gathered.members
        communicator.group = _first_group(door, place, gathered)
    except BaseException:
        client.close("could not join")
        door.close()
        raise
    return Session(place, communicator, _open_log(place, run_dir), client, door, is_late)


def _break_off(communicator: Communicator, door: Door, *, before: int) -> None:
    """Ends whatever this worker exchanges, or waits for, in groups that are no more."""
    door.give_up(before=before)
    communicator.group.abort()


def _first_group(door: Door, place: Place, gathered: Gathered) -> Group:
    """The founders' group; who comes later stands outside until it is in a view."""
    if place.worker not in gathered.members:
        return OutsiderGroup(rank=len(gathered.members))
    return make_group(
        door,
        GroupKey(run=place.run, view=0, attempt=0),
        rank=gathered.members.index(place.worker),
        addresses=gathered.addresses,
    )


def _open_log(place: Place, run_dir: str | None) -> EventSink:
    folder = run_dir or place.run_dir
    if folder is None:
        return NullWriter()
    source = f"worker {place.worker}"
    return EventWriter(log_path(Path(folder), source), run=place.run, source=source)


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
