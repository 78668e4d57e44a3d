# SPDX-License-Identifier: Apache-2.0
"""Picks the choice of each loop by how the loops before it went.

`expert`: rules pick, a few alternatives get one loop each, and the best of them is kept as long as it
stays the best; where loops come to go much worse, all begins anew (`following.py`). `sarsa` learns
instead which choice is good in which state, and tries more (`learning.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.scheduling.choice import Layout
from gangline.scheduling.selection import rules
from gangline.scheduling.selection.advice import Advice
from gangline.scheduling.selection.following import Follower
from gangline.scheduling.selection.learning import Sarsa
from gangline.scheduling.selection.tuned import TunedQueues
from gangline.scheduling.speeds import Speeds
from gangline.spec.errors import UsageError
from gangline.spec.hints import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.scheduling.measures import LoopReport

METHODS = ("expert", "sarsa")


class Selector:
    """The loops of one program, with the same workers."""

    def __init__(
        self,
        *,
        workers: int,
        groups: Sequence[int] | None = None,
        layouts: Sequence[Layout] = tuple(Layout),
        method: str = "expert",
        seed: int = 0,
    ) -> None:
        """`groups`: the group of each worker (package, node); `layouts`: what the caller can do;
        `seed` is for `sarsa` and for victims."""
        if method not in METHODS:
            hint = did_you_mean(method, METHODS)
            raise UsageError(f"no method {method!r}; there are {', '.join(METHODS)}{hint}")
        self._workers = workers
        self._groups = groups
        self._layouts = tuple(layouts)
        self._seed = seed
        self._loop = 0
        self._speeds = Speeds()
        self._report: LoopReport | None = None
        self._decisions: list[Advice] = []
        self._follower = Follower(self._layouts)
        self._sarsa = Sarsa(seed=seed) if method == "sarsa" else None

    def begin(self, total: int) -> TunedQueues:
        """The queues of the next loop."""
        advice = self._advise(total)
        self._decisions.append(advice)
        return TunedQueues(
            advice,
            total=total,
            workers=self._workers,
            groups=self._groups,
            speeds=self._speeds,
            is_probe=self._report is None and self._workers > 1,
            tell=self._decisions.append,
            seed=self._seed + self._loop,
        )

    def end(self, queues: TunedQueues) -> LoopReport:
        """The loop is over: what it took decides about the next one."""
        report = queues.report()
        self._loop += 1
        if report.items == 0:
            return report
        if self._sarsa is not None:
            self._sarsa.reward(report)
        elif self._report is not None:
            self._follower.note(queues.begun, report)
        self._report = report
        return report

    def decided(self) -> list[Advice]:
        """The decisions since the last call."""
        decisions, self._decisions = self._decisions, []
        return decisions

    def _advise(self, total: int) -> Advice:
        last = self._report
        if last is None:
            choice, why = rules.probe(total, self._workers, self._layouts)
            return Advice(choice=choice, reason=why, loop=self._loop)
        if self._sarsa is not None:
            first, _ = rules.pick(last, total, self._workers, self._layouts)
            choice, why = self._sarsa.pick([first, *rules.arms(first, self._layouts)], last)
        else:
            choice, why = self._follower.pick(last, total, self._workers)
        return Advice(choice=choice, reason=why, numbers=last.numbers(), loop=self._loop)
