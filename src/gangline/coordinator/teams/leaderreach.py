# SPDX-License-Identifier: Apache-2.0
"""Asks the leaders of a round that does not end whom they reach: two of them may be cut apart.

Teams whose leaders do not reach each other can never be merged, and all teams would wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.coordinator.members.reach import Inquiry
from gangline.protocol.messages import Probe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gangline.control.sync.rounds import Round
    from gangline.coordinator.teams.merges import Scope
    from gangline.protocol.messages import Hello, Probed


class LeaderReach:
    """One question at a time, to the leaders of one round."""

    def __init__(self, hellos: Mapping[int, Hello]) -> None:
        self._hellos = hellos
        self._inquiry: Inquiry | None = None
        self._round = -1
        self._num_asked = 0
        """How often this round's leaders were asked: each time after twice as long."""
        self._number = 0
        """Counted down: the numbers from 1 up are those of the teams' own questions."""
        self._unreached: dict[int, frozenset[int]] = {}

    def ask(self, scopes: Iterable[Scope], now: float) -> tuple[tuple[int, ...], Probe] | None:
        """Whom to ask what, where a round has been open for too long."""
        if self._inquiry is not None:
            return None
        for scope in scopes:
            one = scope.round
            if one is not None and len(scope.leaders) > 1 and self._is_late(scope, one, now):
                leaders = scope.leaders
                self._number -= 1
                self._num_asked += 1
                reason = f"a round has not ended for {now - one.opened_s:.1f} s"
                self._inquiry = Inquiry(self._number, leaders, now, reason=reason)
                addresses = tuple(self._hellos[leader].address for leader in leaders)
                return leaders, Probe(number=self._number, workers=leaders, addresses=addresses)
        return None

    def _is_late(self, scope: Scope, one: Round, now: float) -> bool:
        if one.number != self._round:
            self._round, self._num_asked = one.number, 0
        limit_s: float = scope.clock.patience_s * 2**self._num_asked
        return now - one.opened_s > limit_s

    def hear(self, worker: int, probed: Probed) -> None:
        """A leader says whom it reaches."""
        if self._inquiry is not None and probed.number == self._inquiry.number:
            self._inquiry.answer(worker, probed.reached)

    def conclude(self, now: float) -> dict[int, str]:
        """Which leaders are cut from others, and why that is known: when all have answered."""
        inquiry = self._inquiry
        if inquiry is None or not inquiry.is_over(now):
            return {}
        self._inquiry = None
        cut = inquiry.find_cut()
        missing = inquiry.find_missing()
        self._unreached |= {leader: missing[leader] for leader in cut}
        return {
            leader: f"its leader does not reach {_named(missing[leader])} ({inquiry.reason})"
            for leader in cut
        }

    def unreached(self, worker: int) -> frozenset[int]:
        """Whom a worker that led a team did not reach, when its team was given up."""
        return self._unreached.get(worker, frozenset())


def _named(workers: Iterable[int]) -> str:
    names = [str(worker) for worker in sorted(workers)]
    return f"worker{'s' if len(names) > 1 else ''} {', '.join(names)}"
