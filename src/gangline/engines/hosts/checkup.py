# SPDX-License-Identifier: Apache-2.0
"""Looks at all hosts side by side, within a deadline: what they are, and whom they reach."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.hosts.introduction import coordinator_from
from gangline.engines.hosts.line import HostLine
from gangline.engines.hosts.seat import misfit
from gangline.protocol.agents import Dial, Dialled, End, Examine, Examined, Here, Place
from gangline.protocol.reaching import (
    GREETING,
    Attempt,
    Reach,
    greet_all,
    hang_up,
    listen_within,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from gangline.spec.machines.hosts import Host

COORDINATOR = "the coordinator"
"""The name of this machine among those that hosts try to reach; no host can have it."""
_POLL_S = 0.02
_DIALLING_S = 6.0
"""This much of the time is left for hosts to reach each other."""
_CLOSE_S = 2.0


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What hosts are looked at for."""

    listen: str
    """The interface that the coordinator would listen at."""
    port: int
    """Its port; 0: any."""
    ports: tuple[int, int] | None
    """Those that workers may listen on; None: any."""
    packages: tuple[str, ...]
    deadline_s: float


class HostReport(msgspec.Struct, kw_only=True):
    """What was found of one host."""

    name: str
    problem: str | None = None
    """Why nothing more is known; None: everything was looked at."""
    here: Here | None = None
    examined: Examined | None = None
    clock_s: float = 0.0
    """How far its clock is before this machine's."""
    clock_error_s: float = 0.0
    """How far off that may be."""
    attempts: dict[str, Attempt] = {}
    """Whom it tried to reach, by name; this machine is `COORDINATOR`."""


class _Patient:
    """One host that is looked at."""

    def __init__(self, host: Host, asked: Asked, *, log: Path) -> None:
        self.report = HostReport(name=host.name)
        self._host, self._asked = host, asked
        self._line = HostLine(host, log=log)
        self._asked_at_s = 0.0
        self.coordinator: tuple[str, int] = ("", 0)
        """Where it would reach the coordinator."""
        self.is_done = False

    @property
    def is_examined(self) -> bool:
        return self.report.problem is not None or self.report.examined is not None

    def look(self) -> None:
        """Hears what the agent says, and answers."""
        if self.report.problem is not None:
            return
        for message in self._line.listen():
            self._hear(message)
        problem = self._line.problem()
        if problem is not None and not self.is_done:
            self.report.problem = problem

    def _hear(self, message: msgspec.Struct) -> None:
        report = self.report
        match message:
            case Here():
                report.here = message
                report.problem = misfit(self._host, message, listen=self._asked.listen)
                place = coordinator_from(self._host, message, listen=self._asked.listen)
                if report.problem is None and place is not None:
                    self.coordinator = place
                    self._examine()
            case Examined():
                now = time.time()
                report.examined = message
                there, back = message.asked_at_s - self._asked_at_s, message.told_at_s - now
                report.clock_s = (there + back) / 2
                report.clock_error_s = abs(there - back) / 2
            case Dialled(attempts=attempts):
                report.attempts = attempts
                self.is_done = True
            case _:
                pass

    def _examine(self) -> None:
        self._asked_at_s = time.time()
        self._line.say(
            Examine(
                folder=self._host.folder or str(Path.cwd()),
                packages=self._asked.packages,
                coordinator=self.coordinator[0],
                ports=self._asked.ports,
            )
        )

    def dial(self, places: tuple[Place, ...]) -> None:
        """Has it try to reach these."""
        self._line.say(Dial(places=places))

    def close(self, deadline: float) -> None:
        self._line.say(End())
        self._line.close()
        self._line.await_end(deadline)


def check_hosts(hosts: Sequence[Host], asked: Asked, *, log_dir: Path) -> list[HostReport]:
    """A report of each host, in order. Nothing is run there, and nothing is left."""
    deadline = time.monotonic() + asked.deadline_s
    listener = _listen(asked)
    patients = [_Patient(host, asked, log=log_dir / f"{host.name}.log") for host in hosts]
    try:
        _await(patients, lambda one: one.is_examined, deadline - _DIALLING_S)
        port = 0 if listener is None else listener.getsockname()[1]
        well = [one for one in patients if one.report.examined and not one.report.problem]
        for one in well:
            one.dial(_places_for(one, well, port))
        _await(well, lambda one: one.is_done or one.report.problem is not None, deadline)
        for one in patients:
            if one.report.problem is None and not one.is_done:
                one.report.problem = f"it gave no answer within {asked.deadline_s:g} s"
    finally:
        if listener is not None:
            hang_up(listener)
        for one in patients:
            one.close(time.monotonic() + _CLOSE_S)
    return [one.report for one in patients]


def is_us(attempt: Attempt) -> bool:
    """Whether it was really a host of this checkup, or the coordinator, that was reached."""
    return attempt.reach is Reach.OPEN and attempt.greeting == GREETING


def _listen(asked: Asked) -> socket.socket | None:
    """Stands in for the coordinator; None: somebody is there already, who is tried instead."""
    try:
        listener = listen_within(asked.listen, (asked.port, asked.port) if asked.port else None)
    except OSError:
        return None
    greet_all(listener)
    return listener


def _places_for(one: _Patient, others: Sequence[_Patient], port: int) -> tuple[Place, ...]:
    host, own_port = one.coordinator
    places = [Place(name=COORDINATOR, host=host, port=own_port or port)]
    for other in others:
        examined = other.report.examined
        if other is not one and examined is not None and examined.port:
            places.append(Place(name=other.report.name, host=examined.address, port=examined.port))
    return tuple(places)


def _await(patients: Sequence[_Patient], is_so: Callable[[_Patient], bool], until: float) -> None:
    while time.monotonic() < until:
        for one in patients:
            one.look()
        if all(is_so(one) for one in patients):
            return
        time.sleep(_POLL_S)
