# SPDX-License-Identifier: Apache-2.0
"""Picks the choice of each loop by how the loops before it went.

`expert`: the rules pick, a few alternatives get one loop each, and the best of them is kept as long as
it stays the best. What took how long is forgotten in time, and all of it when loops go much worse
than they did. `sarsa` learns instead which choice is good in which state, and tries more.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from gangline.scheduling.selection import rules
from gangline.scheduling.selection.advice import Advice
from gangline.scheduling.selection.learning import Sarsa
from gangline.scheduling.selection.tuned import TunedQueues
from gangline.scheduling.speeds import Speeds
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.scheduling.choice import Choice
    from gangline.scheduling.measures import LoopReport

METHODS = ("expert", "sarsa")
MARGIN = 0.01
"""Another choice must have been better by this, not to change for nothing."""
FORGOTTEN = 0.3
"""How much the newest loop counts in what a choice takes."""
WORSE = 0.1
"""A loop that is this much worse, in imbalance, than when its choice was kept: look around again."""


class Selector:
    """The loops of one program, with the same workers."""

    def __init__(
        self,
        *,
        workers: int,
        groups: Sequence[int] | None = None,
        method: str = "expert",
        seed: int = 0,
    ) -> None:
        """`groups`: the group of each worker (package, node); `seed` is for `sarsa` and victims."""
        if method not in METHODS:
            near = difflib.get_close_matches(method, METHODS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"no method {method!r}; there are {', '.join(METHODS)}{hint}")
        self._workers = workers
        self._groups = groups
        self._num_groups = 1 if groups is None else len(set(groups))
        self._seed = seed
        self._loop = 0
        self._speeds = Speeds()
        self._report: LoopReport | None = None
        self._decisions: list[Advice] = []
        self._taken: dict[str, float] = {}
        """Time per item of each choice that had a loop, the newest counting most."""
        self._known: dict[str, Choice] = {}
        self._untried: list[Choice] = []
        self._kept_imbalance: float | None = None
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
        is_first = self._report is None
        self._report, self._loop = report, self._loop + 1
        if report.items == 0:
            return report
        if self._sarsa is not None:
            self._sarsa.reward(report)
        if is_first:
            return report
        self._note(queues.choice, report)
        return report

    def decided(self) -> list[Advice]:
        """The decisions since the last call."""
        decisions, self._decisions = self._decisions, []
        return decisions

    def _advise(self, total: int) -> Advice:
        if self._report is None or self._report.items == 0:
            choice, why = rules.probe(total, self._workers, groups=self._num_groups)
            return Advice(choice=choice, reason=why, loop=self._loop)
        first, why = rules.pick(self._report, total, self._workers, groups=self._num_groups)
        if self._sarsa is not None:
            choices = [first, *rules.arms(first, groups=self._num_groups)]
            choice, why = self._sarsa.pick(choices, self._report)
        else:
            choice, why = self._follow(first, why)
        return Advice(choice=choice, reason=why, numbers=self._numbers(), loop=self._loop)

    def _follow(self, first: Choice, why: str) -> tuple[Choice, str]:
        assert self._report is not None
        if str(first) not in self._known:
            self._known[str(first)] = first
            self._untried = rules.alternatives(first, self._report, groups=self._num_groups)
            return first, why
        if self._untried:
            choice = self._untried.pop(0)
            self._known[str(choice)] = choice
            return choice, f"a loop to see whether it is better than {first}"
        best = min(self._taken, key=lambda name: self._taken[name])
        kept = str(first)
        if kept not in self._taken or self._taken[best] < self._taken[kept] * (1 - MARGIN):
            kept = best
        return self._known[
            kept
        ], f"{self._taken[kept]:.3g} s per item, the best of {len(self._taken)}"

    def _note(self, choice: Choice, report: LoopReport) -> None:
        name = str(choice)
        if name not in self._known:
            return
        before = self._taken.get(name)
        now = report.time_per_item_s
        self._taken[name] = now if before is None else before + FORGOTTEN * (now - before)
        if self._untried:
            return
        if self._kept_imbalance is None:
            self._kept_imbalance = report.imbalance
        elif report.imbalance > self._kept_imbalance + WORSE:
            self._taken.clear()
            self._known.clear()
            self._kept_imbalance = None

    def _numbers(self) -> dict[str, float | None]:
        assert self._report is not None
        return self._report.numbers()
