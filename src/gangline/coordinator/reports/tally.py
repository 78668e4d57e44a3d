# SPDX-License-Identifier: Apache-2.0
"""Brings the workers' reports on a step together: the mind is asked once per step, not per worker."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gangline.control import StepMeasured
from gangline.control.members.ranks import Ranks

if TYPE_CHECKING:
    from gangline.coordinator.reports.bunch import Bunch
    from gangline.planning.allocation.bounds import Floats, Shares
    from gangline.protocol.messages import Measured

MAX_OPEN_STEPS = 64
"""A step that so many later ones have overtaken is told with what there is."""
MAX_AHEAD = 1000
"""A report so many steps ahead of all others is not believed before another member says the same."""
DOUBTS_TOLD = 10
"""After so many such reports of one member, somebody is told."""


class _Hops:
    """Hops that members have told of: whose rank, which peer's rank, how long."""

    def __init__(self, owners: Shares, peers: Shares, hop_s: Floats) -> None:
        self.owners, self.peers, self.hop_s = owners, peers, hop_s

    def without(self, owner: int) -> _Hops:
        """What a member has told of does not count any more."""
        others = self.owners != owner
        return _Hops(self.owners[others], self.peers[others], self.hop_s[others])


class _OpenStep:
    """What is known of one step, by rank."""

    def __init__(self, count: int) -> None:
        self.is_known = np.zeros(count, dtype=bool)
        self.num_known = 0
        self.view = np.full(count, -1, dtype=np.int64)
        self.samples = np.zeros(count, dtype=np.int64)
        self.compute_s, self.exchange_s, self.other_s, self.arrived_s, self.waited_s = np.full(
            (5, count), math.nan
        )
        self.hops: list[_Hops] = []

    def add(self, rank: int, report: Measured, now: float) -> None:
        """One member's report, instead of what it has said before."""
        if self.is_known[rank]:
            self.hops = [hops.without(rank) for hops in self.hops]
        self.num_known += not self.is_known[rank]
        self.is_known[rank] = True
        self.view[rank], self.samples[rank] = report.view, report.samples
        self.compute_s[rank], self.exchange_s[rank] = report.compute_s, report.exchange_s
        self.other_s[rank], self.arrived_s[rank] = report.other_s, now
        self.waited_s[rank] = math.nan if report.waited_s is None else report.waited_s
        if report.hops:
            peers = np.array([peer for peer, _ in report.hops], dtype=np.int64)
            hop_s = np.array([seconds for _, seconds in report.hops])
            self.hops.append(_Hops(np.full(len(peers), rank), peers, hop_s))

    def add_many(self, ranks: Shares, bunch: Bunch, now: float) -> None:
        """The reports of members of whom none was known."""
        self.num_known += len(ranks)
        self.is_known[ranks] = True
        self.view[ranks], self.samples[ranks] = bunch.given.view, bunch.samples
        self.compute_s[ranks], self.exchange_s[ranks] = bunch.compute_s, bunch.exchange_s
        self.other_s[ranks], self.arrived_s[ranks] = bunch.given.other_s, now
        if len(bunch.hop_s):
            self.hops.append(_Hops(ranks, bunch.hop_peers, bunch.hop_s))

    def told(self, step: int, members: tuple[int, ...]) -> StepMeasured:
        """All that is known."""
        known = self.is_known
        took_s = self.compute_s[known] + self.exchange_s[known] + self.other_s[known]
        return StepMeasured(
            step=step,
            view=int(self.view[known].max()),
            workers=members,
            samples=self.samples,
            compute_s=self.compute_s,
            exchange_s=float(self.exchange_s[known].min()),
            step_s=float(np.median(took_s)),
            delay_s=self.arrived_s - self.arrived_s[known].min(),
            waited_s=self.waited_s if np.isfinite(self.waited_s).any() else None,
            hop_s=self._fastest_hops(),
        )

    def _fastest_hops(self) -> Floats | None:
        """The fastest hop of each member, of those to it and from it; None where nobody says."""
        hop_s = np.full(len(self.is_known), math.nan)
        for hops in self.hops:
            is_member = hops.peers < len(hop_s)
            for ranks in (hops.owners, hops.peers):
                np.fmin.at(hop_s, ranks[is_member], hops.hop_s[is_member])
        return hop_s if np.isfinite(hop_s).any() else None


class Tally:
    """The reports on steps that are not complete yet."""

    def __init__(self, members: tuple[int, ...], *, reached: int = -1) -> None:
        self._ranks = Ranks(members)
        self._open: dict[int, _OpenStep] = {}
        self._last_told = -1
        self._reached = reached
        self._said = np.full(len(members), -1, dtype=np.int64)
        self._said_outside: dict[int, int] = {}
        """What those say who are no members."""
        self._doubts: Counter[int] = Counter()

    def believes(self, worker: int, step: int) -> bool:
        """Whether a member may be at this step. Members exchange in every step, so none is far ahead.

        The others' reports may be lost, or a coordinator may be new: then a second one settles it.
        """
        rank = self._ranks.get(worker)
        if rank is None:
            self._said_outside[worker] = step
            return True
        self._said[rank] = step
        if len(self._ranks) < 2 or self._is_near(step):
            return True
        others = max([*np.delete(self._said, rank).tolist(), *self._said_outside.values()])
        if step <= others + MAX_AHEAD:
            return True
        self._doubts[worker] += 1
        return False

    def _is_near(self, step: int) -> bool:
        return step <= max(self._reached, self._last_told) + MAX_AHEAD

    def must_tell(self, worker: int) -> bool:
        """Whether it is time to say that a member is not believed."""
        return self._doubts[worker] == DOUBTS_TOLD

    def add(self, worker: int, report: Measured, now: float) -> list[StepMeasured]:
        """Takes one report, and returns the steps that are complete with it, in order."""
        rank = self._ranks.get(worker)
        if rank is None or report.step <= self._last_told:
            return []
        self._opened(report.step).add(rank, report, now)
        return self._complete(report.step)

    def takes(self, bunch: Bunch) -> bool:
        """Whether the reports of many come to the same at once as one after the other.

        They are of members, each of whom is believed and has not reported this step, and no other
        step is told before the last of them is there.
        """
        step, ranks = bunch.given.step, self._ranks.of(bunch.workers)
        if len(ranks) == 0 or ranks.min() < 0 or not self._is_near(step):
            return False
        is_there = np.zeros(len(self._ranks), dtype=bool)
        is_there[ranks] = True
        known = self._open.get(step)
        if known is None:
            return bool(is_there.sum() == len(ranks) and len(self._open) < MAX_OPEN_STEPS)
        return bool(is_there.sum() == len(ranks) and not (is_there & known.is_known).any())

    def add_many(self, bunch: Bunch, now: float) -> list[StepMeasured]:
        """Takes reports that it `takes`, and returns the steps that are complete with them."""
        step, ranks = bunch.given.step, self._ranks.of(bunch.workers)
        self._said[ranks] = step
        if step <= self._last_told:
            return []
        self._opened(step).add_many(ranks, bunch, now)
        return self._complete(step)

    def _opened(self, step: int) -> _OpenStep:
        if step not in self._open:
            self._open[step] = _OpenStep(len(self._ranks))
        return self._open[step]

    def _complete(self, step: int) -> list[StepMeasured]:
        """The steps that can be told, now that there is news of this one."""
        overdue = sorted(self._open)[:-MAX_OPEN_STEPS]
        is_complete = self._open[step].num_known == len(self._ranks)
        last = max([*overdue, step if is_complete else -1], default=-1)
        due = [one for one in sorted(self._open) if one <= last]
        self._last_told = max(self._last_told, *due, -1)
        return [self._open.pop(one).told(one, self._ranks.members) for one in due]
