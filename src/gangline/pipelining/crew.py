# SPDX-License-Identifier: Apache-2.0
"""The connections of one layout: neighbours of a pipeline, and those that hold the same layers."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from gangline.paramserver.service.link import pair_of
from gangline.paramserver.service.messages import receive, send
from gangline.pipelining.wires import Incoming, Outgoing
from gangline.worker.groups.beside import GroupsBeside, LossWatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives import Group
    from gangline.pipelining.holding import Holdings
    from gangline.pipelining.standing import Move, Standing, Tie
    from gangline.spec.pipelines import Pipeline
    from gangline.worker.session import Session

_MAX_BYTES = 1 << 46


class _Moved(msgspec.Struct, frozen=True):
    layers: Any


class Crew:
    """Who exchanges what with whom, from one meeting to the next."""

    def __init__(self, session: Session, standings: Sequence[Standing], *, name: str) -> None:
        self._standings = standings
        self.place = [one.worker for one in standings].index(session.place.worker)
        self._places = {one.machine.name: place for place, one in enumerate(standings)}
        self._groups = GroupsBeside(session, name=name)
        self._watch = LossWatch(session, self._groups)
        self._watch.__enter__()
        self.ties: list[tuple[Tie, Group]] = []
        self.before_in: Incoming | None = None
        """Activations from the stage before."""
        self.before_out: Outgoing | None = None
        """Gradients to the stage before."""
        self.after_in: Incoming | None = None
        self.after_out: Outgoing | None = None

    def move(self, moves: Sequence[Move], holdings: Holdings) -> None:
        """Sends and receives layers."""
        for number, move in enumerate(moves):
            if self.place not in (move.source, move.target):
                continue
            group = self._pair(f"move{number}", move.source, move.target)
            if self.place == move.source:
                states = {str(index): holdings.export(index) for index in move.layers}
                send(group, _Moved(states), ticket=0)
            else:
                message, _ = receive(group, _Moved, max_bytes=_MAX_BYTES)
                for index, state in message.layers.items():
                    holdings.load(int(index), state)

    def hand_on(self, holdings: Holdings) -> dict[int, Any]:
        """Whoever computes layers sends their states to who keeps copies; what this worker got."""
        got: dict[int, Any] = {}
        for tie, group in self.ties:
            if group.rank < len(tie.computing):
                states = {str(index): holdings.export(index) for index in tie.layers}
                send(group, _Moved(states), ticket=0)
            else:
                message, _ = receive(group, _Moved, max_bytes=_MAX_BYTES)
                got |= {int(index): state for index, state in message.layers.items()}
        return got

    def connect(self, pipeline: Pipeline | None, ties: Sequence[Tie]) -> None:
        """Makes the groups with neighbours, and with those that hold the same layers."""
        stages = [] if pipeline is None else [self._places[name] for name in pipeline.machines]
        for number, (low, high) in enumerate(pairwise(stages)):
            if self.place not in (low, high):
                continue
            forward = self._pair(f"forward{low}.{number}", low, high)
            backward = self._pair(f"backward{low}.{number}", low, high)
            if self.place == low:
                self.after_out, self.after_in = Outgoing(forward), Incoming(backward)
            else:
                self.before_in, self.before_out = Incoming(forward), Outgoing(backward)
        for number, tie in enumerate(ties):
            places = [self._places[name] for name in tie.members]
            if self.place in places:
                addresses = [self._address(place) for place in places]
                rank = places.index(self.place)
                group = self._groups.connect(f"tie{number}", rank=rank, addresses=addresses)
                self.ties.append((tie, group))

    def close(self) -> None:
        """Ends all of it; what anybody waits for here fails."""
        self._groups.close()
        self._watch.__exit__()
        for wire in (self.before_in, self.before_out, self.after_in, self.after_out):
            if wire is not None:
                wire.close()
        self._groups.free()

    def _pair(self, level: str, low: int, high: int) -> Group:
        rank = int(self.place == high)
        peer = low if rank else high
        addresses = pair_of(self._address(self.place), self._address(peer), rank=rank)
        return self._groups.connect(level, rank=rank, addresses=addresses)

    def _address(self, place: int) -> Any:
        return self._standings[place].address


def time_link(group: Group) -> tuple[float, float]:
    """Seconds of a small message, and bytes per second, as this worker sees them in the job's group."""
    if group.size == 1:
        return 0.0, 1e12
    took = []
    for length in (1, 1 << 18):
        tensor = torch.zeros(length)
        group.all_reduce(torch.zeros(1))
        begun = time.perf_counter()
        group.all_gather(tensor)
        took.append((time.perf_counter() - begun) / (group.size - 1))
    small, large = took
    return small, (4 << 18) / max(1e-6, large - small)
