# SPDX-License-Identifier: Apache-2.0
"""A federation without sockets: its clock, what it has told each worker, and what it wrote down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from test_hub import Room

from gangline.control.sync.rounds import AWAY_S
from gangline.coordinator import Federation
from gangline.coordinator.server.journal import FileJournal
from gangline.protocol.messages import (
    EpochClosed,
    LeaseAsked,
    LeaseGranted,
    Measured,
    OfTeam,
    Reached,
    Ready,
    RoundDone,
    RoundOpened,
    ViewPublished,
)
from gangline.spec.exchange.structure import RING, Structure
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.coordinator.teams.all_teams import Teams
    from gangline.spec.event import Event
    from gangline.spec.view import View

LENGTH = 96
PAIRS = Structure(
    topology=RING,
    leader=0,
    groups=(
        Structure(topology=RING, leader=0, members=(0, 1)),
        Structure(topology=RING, leader=2, members=(2, 3)),
    ),
)


class Memory:
    """An event log that is only looked at."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass


class TeamRoom(Room):
    """A federation in the place of a hub."""

    def __init__(
        self,
        expected: int = 2,
        *,
        sync: str = "none",
        structure: Structure | None = None,
        **options: Any,
    ) -> None:
        self.log = Memory()
        self.sync = parse_sync(sync)
        self.team_of: dict[int, int] = {}
        """The team that each worker has heard last that it is in."""
        self.structure = structure
        super().__init__(expected, **options)

    def start(self) -> None:
        self.hub: Any = Federation(
            self.settings, events=self.log, clock=lambda: self.now, **self.options
        )

    @property
    def teams(self) -> Teams:
        teams: Teams | None = self.hub._teams
        assert teams is not None
        return teams

    def ready(self, worker: int, **fields: Any) -> None:
        said = {
            "global_batch": 12,
            "minimum": 1,
            "allocation": "equal",
            "shares": None,
            "max_samples": None,
            "seed": 5,
            "structure": self.structure,
            "sync": self.sync,
            **fields,
        }
        self.say(worker, Ready(**said))

    def say(self, worker: int, message: Any) -> None:
        """A worker says something, of the team that it has heard that it is in."""
        if isinstance(message, OfTeam) and message.team < 0:
            message = msgspec.structs.replace(message, team=self.team_of.get(worker, -1))
        super().say(worker, message)

    def deliver(self, outgoing: list[Any]) -> None:
        for worker, message in outgoing:
            if isinstance(message, ViewPublished) and worker in message.view.members:
                self.team_of[worker] = message.view.team
        super().deliver(outgoing)

    def view_of(self, worker: int) -> View:
        """The newest view that a worker was told."""
        view: View = self.last(worker, ViewPublished).view
        return view

    def step_of(self, worker: int, number: int) -> None:
        """A worker makes its step in its newest view."""
        view = self.view_of(worker)
        samples = view.shares[view.members.index(worker)]
        self.say(worker, Measured(step=number, view=view.number, samples=samples, compute_s=0.1))

    def lease(self, worker: int, number: int, *, epoch: int = 0) -> tuple[int, int]:
        """Asks for a lease; what all members of the team were told."""
        self.say(worker, LeaseAsked(epoch=epoch, number=number, length=LENGTH))
        granted = self.last(worker, LeaseGranted)
        assert (granted.epoch, granted.number) == (epoch, number)
        return granted.start, granted.stop

    def reach(
        self,
        worker: int,
        offset: int,
        *,
        epoch: int = 0,
        step: int = 4,
        is_end: bool = True,
        length: int = 0,
    ) -> None:
        told = self.told.get(worker, [])
        rounds = [one.number for one in told if isinstance(one, RoundOpened)]
        ends = [one.round for one in told if isinstance(one, EpochClosed)]
        place = Reached(
            epoch=epoch,
            offset=offset,
            step=step,
            is_end=is_end,
            after=max(rounds, default=-1),
            closing=max(ends, default=-1),
            length=length,
        )
        self.say(worker, place)

    def done(self, worker: int, offset: int, *, epoch: int = 0, **fields: float) -> None:
        """A leader says that its team holds the mean of the newest round."""
        self.say(
            worker,
            RoundDone(
                number=self.last(worker, RoundOpened).number,
                epoch=epoch,
                offset=offset,
                busy_s=fields.get("busy_s", 0.01),
                exchange_s=fields.get("exchange_s", 0.02),
                drift=fields.get("drift", 0.1),
                sent_bytes=100,
            ),
        )

    def events(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.log.events if isinstance(event, kind)]

    def count(self, worker: int, kind: type[Any]) -> int:
        return sum(isinstance(message, kind) for message in self.told.get(worker, []))


def founded(expected: int = 2, **options: Any) -> TeamRoom:
    """A room whose founders are teams, and have made a step each."""
    room = TeamRoom(expected, **options)
    for worker in range(expected):
        room.hello(worker)
    for worker in range(expected):
        room.ready(worker)
    for worker in range(expected):
        room.step_of(worker, 0)
    return room


def restart(room: TeamRoom, path: Path) -> None:
    """The coordinator is killed, and started again from its journal."""
    room.options["journal"] = FileJournal(path)
    room.told.clear()
    room.start()


def through_epoch(room: TeamRoom, epoch: int) -> dict[int, int]:
    """All teams use what there is, meet and are merged; how much each has used."""
    used = {team.leader: 0 for team in room.teams.active}
    numbers = dict.fromkeys(used, 0)
    open_for = set(used)
    while open_for:
        for leader in sorted(open_for):
            start, stop = room.lease(leader, numbers[leader], epoch=epoch)
            numbers[leader] += 1
            used[leader] += stop - start
            if start == stop:
                open_for.discard(leader)
    for leader, offset in used.items():
        room.reach(leader, offset, epoch=epoch, step=10 * (epoch + 1) + leader)
    for leader, offset in used.items():
        room.done(leader, offset, epoch=epoch)
    return used


def lose_worker(room: TeamRoom, worker: int) -> None:
    room.hub.disconnect(worker)
    room.tick()
    room.tick(AWAY_S + 0.1)
