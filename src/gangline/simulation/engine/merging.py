# SPDX-License-Identifier: Apache-2.0
"""What the leaders of simulated teams exchange, message by message over the scenario's links."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gangline.protocol.messages import RoundFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.protocol.messages import RoundOpened
    from gangline.simulation.engine.member import Member
    from gangline.simulation.network import Network
    from gangline.simulation.scenario import Scenario
    from gangline.simulation.world import World

SMALL_PASSES = 2
"""How often the leaders go round before they exchange: to learn what everybody brings."""


def bytes_of(opened: RoundOpened, scenario: Scenario) -> float:
    """What a merge moves."""
    is_more = opened.is_whole and scenario.whole_bytes is not None
    return (scenario.whole_bytes or 0.0) if is_more else scenario.model_bytes


class _Exchange:
    """One merge: who has brought its team's copy, and when each leader has the mean."""

    def __init__(self, opened: RoundOpened) -> None:
        self.opened = opened
        self.leaders: dict[int, Member] = {}
        self.begun_s: dict[int, float] = {}
        self.arrived_s: dict[int, float] = {}


class Exchanges:
    """All merges that are under way."""

    def __init__(self, world: World, network: Network, look: Callable[[Member], None]) -> None:
        """`look` is called for a leader when it has the mean."""
        self._world = world
        self._network = network
        self._look = look
        self._open: dict[int, _Exchange] = {}

    def bring(self, opened: RoundOpened, leader: Member) -> None:
        """A leader is there with its team's copy. When the last one is, they go round."""
        one = self._open.setdefault(opened.number, _Exchange(opened))
        one.leaders[leader.worker] = leader
        one.begun_s[leader.worker] = self._world.now
        if len(one.begun_s) < len(opened.leaders):
            return
        scenario = self._world.scenario
        rows = [one.leaders[worker].life.row for worker in opened.leaders]
        begin_s = [one.begun_s[worker] for worker in opened.leaders]
        known_s = self._network.ring_s(rows, begin_s, num_bytes=0.0, passes=SMALL_PASSES)
        end_s = self._network.ring_s(rows, known_s, num_bytes=bytes_of(opened, scenario))
        always_s = scenario.exchange_s if len(rows) > 1 else 0.0
        for worker, at_s in zip(opened.leaders, end_s, strict=True):
            one.arrived_s[worker] = at_s + always_s
            look = partial(self._look, one.leaders[worker])
            self._world.clock.schedule(at_s + always_s, look)

    def took_s(self, number: int, leader: Member) -> float | None:
        """How long a leader has exchanged; None where it has not got the mean."""
        one = self._open.get(number)
        arrived_s = None if one is None else one.arrived_s.get(leader.worker)
        if one is None or arrived_s is None or arrived_s > self._world.now:
            return None
        return arrived_s - one.begun_s[leader.worker]

    def end(self, number: int) -> None:
        """Rounds up to this one are over."""
        self._open = {one: exchange for one, exchange in self._open.items() if one > number - 64}

    def bury(self, dead: Member) -> None:
        """A worker is dead: leaders that exchange with it say so."""
        now = self._world.now
        for number, one in list(self._open.items()):
            is_over = all(
                one.arrived_s.get(worker, now + 1) <= now for worker in one.opened.leaders
            )
            if dead.worker not in one.opened.leaders or is_over:
                continue
            del self._open[number]
            for worker, leader in one.leaders.items():
                if worker != dead.worker and leader.is_able:
                    leader.say(RoundFailed(number=number, error=f"worker {dead.worker} is gone"))
