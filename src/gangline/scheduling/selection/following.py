# SPDX-License-Identifier: Apache-2.0
"""Expert rules first, then a few alternatives with a loop each, and the best of them is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.scheduling.selection import rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.scheduling.choice import Choice, Layout
    from gangline.scheduling.measures import LoopReport

MARGIN = 0.01
"""Another choice must have been better than the expert's by this, not to change for nothing, and by
more than loops with the expert's own choice differ from each other."""
NEWEST = 0.3
"""How much the newest loop counts in what a choice takes."""
WORSE = 0.1
"""Where imbalance or overhead take this much more of the time than they did, all begins anew."""


class Follower:
    """What each choice took, and which one is followed now."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self._layouts = layouts
        self._forget()

    def _forget(self) -> None:
        self._choices: dict[str, Choice] = {}
        self._taken: dict[str, float] = {}
        """Time per item of each choice that had a loop."""
        self._expert = ""
        self._untried: list[Choice] = []
        self._margin = MARGIN
        self._usual: tuple[float, float] | None = None
        """Imbalance and overhead, when the best was first followed."""

    def pick(self, last: LoopReport, total: int, workers: int) -> tuple[Choice, str]:
        """The choice for the next loop, and why."""
        if not self._expert:
            return self._begin(*rules.pick(last, total, workers, self._layouts), last)
        if self._untried:
            choice = self._untried.pop(0)
            if str(choice) == self._expert:
                return choice, "once more, to see how much its loops differ"
            self._choices[str(choice)] = choice
            return choice, f"a loop to see whether it is better than {self._expert}"
        kept = min(self._taken, key=lambda name: self._taken[name], default=self._expert)
        if self._taken.get(self._expert, 0.0) * (1 - self._margin) < self._taken.get(kept, 0.0):
            kept = self._expert
        return self._choices[kept], f"the best of {len(self._taken)} that were tried"

    def note(self, begun: Choice, report: LoopReport) -> None:
        """A loop that began with the choice `begun` is over."""
        name, now = str(begun), report.time_per_item_s
        if name not in self._choices:
            return
        before = self._taken.get(name, now)
        if name == self._expert and before > 0:
            self._margin = max(self._margin, abs(now - before) / before)
        self._taken[name] = before + NEWEST * (now - before)
        if not self._untried:
            self._watch(report)

    def _begin(self, choice: Choice, why: str, last: LoopReport) -> tuple[Choice, str]:
        self._expert = str(choice)
        self._choices[self._expert] = choice
        others = rules.alternatives(choice, last, self._layouts)
        self._untried = [*others, choice] if others else []
        return choice, why

    def _watch(self, report: LoopReport) -> None:
        if self._usual is None:
            self._usual = (report.imbalance, report.overhead_share)
            return
        imbalance, overhead = self._usual
        if report.imbalance > imbalance + WORSE or report.overhead_share > overhead + WORSE:
            self._forget()
