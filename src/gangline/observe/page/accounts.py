# SPDX-License-Identifier: Apache-2.0
"""Who was there, how long, and what their time was spent on: what the bill is made from.

Where one line of the log speaks for all workers of a step, the one in the middle stands for all.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from gangline.observe.page.summed import MIDDLE
from gangline.observe.page.totals import SPENT

if TYPE_CHECKING:
    from gangline.observe.page.fold import Fold

_MOST_BLAMED = 100


class Accounts:
    """Answers by worker."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self._timeline = fold.timeline

    @cached_property
    def workers(self) -> list[int]:
        """Everybody who was expected or seen."""
        if self.fold.lanes.num_workers:
            return [MIDDLE]
        steps = self.fold.totals.worker_steps
        seen = {worker for worker in range(len(steps)) if steps[worker] > 0}
        return sorted(seen.union(self._timeline.workers))

    def name_of(self, worker: int) -> str:
        """The node, and the worker where the node has several."""
        node = "" if self.fold.lanes.num_workers else self._timeline.node_of(worker)
        if not node:
            return f"worker {worker}"
        return node if self._per_node.get(node) == 1 else f"{node}, worker {worker}"

    def node_of(self, worker: int) -> str:
        """The name of a worker's machine; empty where nobody said."""
        return "" if self.fold.lanes.num_workers else self._timeline.node_of(worker)

    @cached_property
    def weight(self) -> dict[int, float]:
        """How much of a machine a worker is: those on one machine share its hours."""
        if self.fold.lanes.num_workers:
            return {MIDDLE: float(self.fold.lanes.num_workers)}
        return {
            worker: 1 / self._per_node[node] if (node := self.node_of(worker)) else 1.0
            for worker in self.workers
        }

    @cached_property
    def _per_node(self) -> Counter[str]:
        return Counter(self.node_of(worker) for worker in self.workers)

    def spent_s(self, worker: int, kind: str) -> float:
        """A worker's time in steps for one of SPENT."""
        spent = self.fold.totals.spent
        return float(spent[worker, SPENT.index(kind)]) if worker < len(spent) else 0.0

    def in_steps_s(self, worker: int) -> float:
        """A worker's time in all its steps."""
        spent = self.fold.totals.spent
        return float(spent[worker].sum()) if worker < len(spent) else 0.0

    def samples_of(self, worker: int) -> float:
        """What a worker computed."""
        samples = self.fold.totals.worker_samples
        return float(samples[worker]) if worker < len(samples) else 0.0

    def steps_of(self, worker: int) -> int:
        """In how many steps a worker took part."""
        steps = self.fold.totals.worker_steps
        return int(steps[worker]) if worker < len(steps) else 0

    @cached_property
    def caused_waits(self) -> dict[int, float]:
        """By worker, how long the others waited for it, all together."""
        lanes = self.fold.lanes
        if lanes.num_workers:
            ranked = sorted(lanes.slowest.items(), key=lambda one: -one[1][1])[:_MOST_BLAMED]
            return {worker: waited_s / lanes.num_workers for worker, (_, waited_s) in ranked}
        caused = self.fold.totals.caused_s
        return {w: float(caused[w]) for w in self.workers if w < len(caused) and caused[w] > 0}

    def began_s(self, worker: int) -> float:
        """When a worker came, since the run began: those that were started with it, at once."""
        started = self._timeline.started
        if started is not None and worker < started.workers:
            return 0.0
        return self.fold.first_seen_s.get(worker, 0.0)

    def paid_s(self, worker: int) -> float:
        """How long a worker's machine was there for the run."""
        return max(0.0, self.fold.length_s - self.began_s(worker))

    def started_after_s(self, worker: int) -> float:
        """How long it took a worker to begin its first step; all of its time, if it never did."""
        paid_s = self.paid_s(worker)
        first_s = self.fold.first_step_s.get(worker)
        if first_s is None:
            away_s = sum(
                one.end - one.begin for one in self.fold.presence.absences if one.worker == worker
            )
            return max(0.0, paid_s - away_s)
        return min(paid_s, max(0.0, first_s - self.began_s(worker)))
