# SPDX-License-Identifier: Apache-2.0
"""A simulated team's part in a merge: the stages of a real one, each of which needs the end of a step.

- opened: the team's copy is taken, and its leader is ready to exchange it.
- arrived: the leaders have gone round, and the team is given the mean.
- held: the coordinator is told that the team has it.
- closed: the team takes it, or drops it where another team was lost meanwhile.

What a team can do at the end of a step is what it knew when it had computed: its members agree on it in
the header of their exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.control.sync.rounds import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gangline.control.sync.rounds import Round
    from gangline.simulation.network import Network
    from gangline.simulation.scenario import Scenario
    from gangline.spec.sync import Sync

SMALL_PASSES = 2
"""How often the leaders go round before they exchange: to learn what everybody brings."""


class Closing(NamedTuple):
    """How a round ended, and how teams are held together from here on."""

    number: int
    is_committed: bool
    sync: Sync


class OpenRound:
    """One merge, while it lasts: who has brought a copy, and when each leader has the mean."""

    def __init__(
        self, one: Round, leaders: Mapping[int, int], *, scenario: Scenario, network: Network
    ) -> None:
        """`leaders` says which of the scenario's workers speaks for each team."""
        self.control = one
        self.leaders = leaders
        self.arrived_s: dict[int, float] = {}
        """When each leader has the mean; empty until all have brought their copies."""
        self.begun_s: dict[int, float] = {}
        self._scenario = scenario
        self._network = network

    @property
    def number(self) -> int:
        """Rounds are numbered in order."""
        return self.control.number

    @property
    def num_bytes(self) -> float:
        """What is exchanged."""
        scenario = self._scenario
        is_more = self.control.is_whole and scenario.whole_bytes is not None
        return (scenario.whole_bytes or 0.0) if is_more else scenario.model_bytes

    def bring(self, team: int, now: float) -> bool:
        """A team's leader is there; whether it was the last."""
        self.begun_s[team] = now
        if len(self.begun_s) < len(self.leaders):
            return False
        rows = list(self.leaders.values())
        begin_s = [self.begun_s[one] for one in self.leaders]
        known_s = self._network.ring_s(rows, begin_s, num_bytes=0.0, passes=SMALL_PASSES)
        end_s = self._network.ring_s(rows, known_s, num_bytes=self.num_bytes)
        always_s = self._scenario.exchange_s if len(rows) > 1 else 0.0
        ends = zip(self.leaders, end_s, strict=True)
        self.arrived_s = {one: at + always_s for one, at in ends}
        return True


class Part:
    """One team's part in the rounds."""

    def __init__(
        self,
        team: int,
        scenario: Scenario,
        *,
        spread_s: Callable[[float], float],
        tell_held: Callable[[int, Report], None],
    ) -> None:
        """`spread_s`: what handing on so many bytes within the team takes; `tell_held` may act."""
        self.opened: OpenRound | None = None
        """What is under way."""
        self.last = -1
        """The newest round that it has taken part in."""
        self.news: OpenRound | None = None
        """The newest round that it was told of."""
        self.closed: Closing | None = None
        """The newest end of a round that it was told of."""
        self._team = team
        self._scenario = scenario
        self._spread_s = spread_s
        self._tell_held = tell_held
        self._mark = 0
        self._busy_s = 0.0
        self._is_held = False
        self._is_told = False

    def look(self, now: float) -> str:
        """The next stage that the team knows it can go to; empty where there is none."""
        opened = self.opened
        if opened is None:
            return "begin" if self.has_news else ""
        if self.is_over:
            return "end"
        if self._is_held:
            return "" if self._is_told else "tell"
        return "share" if now >= opened.arrived_s.get(self._team, float("inf")) else ""

    @property
    def has_news(self) -> bool:
        """Whether there is a round to begin with."""
        news, closed = self.news, -1 if self.closed is None else self.closed.number
        return news is not None and news.number > max(self.last, closed)

    @property
    def is_over(self) -> bool:
        """Whether the team knows how the round under way has ended."""
        closed, opened = self.closed, self.opened
        return closed is not None and opened is not None and closed.number >= opened.number

    def begin(self, mark: int) -> tuple[OpenRound, float]:
        """Takes the team's copy after so many samples of its order; the round, and what it takes."""
        assert self.news is not None
        self.opened, self._mark = self.news, mark
        self.last = self.opened.number
        self._is_held = self._is_told = False
        self._busy_s = self._scenario.merge_s / 2
        return self.opened, self._busy_s

    def share(self) -> float:
        """The leader's mean becomes the team's; what that takes."""
        assert self.opened is not None
        took_s = self._scenario.merge_s / 2 + self._spread_s(self.opened.num_bytes)
        self._is_held = True
        self._busy_s += took_s
        return took_s

    def tell(self) -> None:
        """The team holds the mean, and says so."""
        assert self.opened is not None
        self._is_told = True
        begun_s = self.opened.begun_s[self._team]
        self._tell_held(
            self.opened.number,
            Report(
                self._mark,
                self._busy_s,
                self.opened.arrived_s[self._team] - begun_s,
                self._scenario.group_drift,
            ),
        )

    def end(self) -> Closing:
        """The round is over."""
        assert self.closed is not None
        self.opened = None
        return self.closed
