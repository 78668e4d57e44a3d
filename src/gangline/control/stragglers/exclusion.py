# SPDX-License-Identifier: Apache-2.0
"""What workers are worth: the predicted step with them, and without them.

A step is the slowest worker's a + b·n under the best cut, and the exchange, as far as computing does
not hide it. Taking workers out

- leaves their samples to the others: more computing, unless even their least shares take longer;
- makes the ring shorter, and as fast as the worst hop that is left: by the cost model 2(p − 1)/p times
  what the slowest hop takes. Where nobody says how long hops take, the exchange is taken to stay;
- ends it, where one worker is left. So a machine that is better off alone is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.control.shares.rebalance import needed_certainty
from gangline.control.shares.speeds import assumed_costs
from gangline.control.stragglers.oversight import COMPUTE
from gangline.planning.allocation.balanced import balanced, slowest_s
from gangline.planning.cost.model import LinkCost, all_reduce_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.control.state import ControlState
    from gangline.control.stragglers.oversight import Spare
    from gangline.planning.allocation.bounds import Floats, Shares


_LEAST_S = 1e-9


class Prospect(NamedTuple):
    """Two predicted steps."""

    with_s: float
    without_s: float

    @property
    def exclusion_gain(self) -> float:
        """By what fraction a step gets shorter without the worker."""
        return 1 - self.without_s / self.with_s

    @property
    def return_gain(self) -> float:
        """By what fraction a step gets shorter with it."""
        return 1 - self.with_s / self.without_s


class Selection(NamedTuple):
    """Members that a step would be shorter without, and the two predicted steps."""

    leaving: tuple[int, ...]
    """Ranks."""
    prospect: Prospect


def find_surplus(state: ControlState) -> Selection | None:
    """The members without which a step is predicted to be shortest; None where it is with all.

    Those that would go are taken to be as fast as their measurements allow. Who has its least share
    already takes what it took in the fastest of the last steps at least.
    """
    ranks = min(_candidates(state), key=lambda one: one[1], default=((), 0.0))[0]
    if len(ranks) in (0, len(state.members)):
        return None
    kept = np.sort(np.array(ranks, dtype=np.int64))
    leaving = np.setdiff1d(np.arange(len(state.members)), kept)
    a, b = _as_fast_as_can_be(state, leaving)
    exchange_s, hop_s = state.oversight.recent_exchange_s, state.oversight.hop_s
    with_s = max(
        _compute_s(state, a, b, state.max_samples),
        float(least_possible_s(state)[leaving].max()),
    )
    without_s = _compute_s(state, a[kept], b[kept], state.max_samples[kept])
    return Selection(
        leaving=tuple(leaving.tolist()),
        prospect=Prospect(
            with_s=with_s + exchange_s,
            without_s=without_s + exchange_s * _ring_ratio(hop_s, kept),
        ),
    )


def _candidates(state: ControlState) -> Iterator[tuple[Shares, float]]:
    """Sets of members, and about what a step of each takes: the fastest, and those with good links.

    Were shares any real numbers, all members of a set would finish together; so one pass over the
    members, in either order, gives the steps of all sets that are its beginnings.
    """
    speeds, batch = state.speeds, state.options.global_batch
    hop_s, exchange_s = state.oversight.hop_s, state.oversight.recent_exchange_s
    floor_s = least_possible_s(state)
    even_s = speeds.predicted_s(np.full(len(state.members), batch / len(state.members)))
    orders = [np.maximum(even_s, floor_s).argsort(kind="stable")]
    if np.isfinite(hop_s).all():
        orders.append(hop_s.argsort(kind="stable"))
    for order in orders:
        rate = 1 / speeds.per_sample_s[order]
        together_s = (batch + np.cumsum(speeds.fixed_s[order] * rate)) / np.cumsum(rate)
        compute_s = np.maximum(together_s, np.maximum.accumulate(floor_s[order]))
        can_hold = np.cumsum(state.max_samples[order]) >= batch
        step_s = compute_s + exchange_s * _ring_ratios(hop_s, order)
        best = int(np.where(can_hold, step_s, np.inf).argmin())
        yield order[: best + 1], float(step_s[best])


def least_possible_s(state: ControlState) -> Floats:
    """What each member takes at least, however the batch is cut."""
    speeds, shares, minimum = state.speeds, state.shares, state.options.minimum
    least_s = speeds.predicted_s(np.full(len(shares), minimum))
    is_least = shares <= minimum  # there is nothing to guess
    return np.where(is_least, np.fmax(least_s, state.oversight.least_s), least_s)


def _as_fast_as_can_be(state: ControlState, leaving: Shares) -> tuple[Floats, Floats]:
    """a and b of all, with those that would go as fast as their measurements allow."""
    speeds, shares = state.speeds, state.shares
    certainty = needed_certainty(len(shares), is_doubtful=False)
    predicted_s = np.maximum(speeds.predicted_s(shares), _LEAST_S)
    sure = np.maximum(1 - certainty * speeds.standard_error_s(shares) / predicted_s, 0.1)
    factor = np.ones(len(shares))
    factor[leaving] = sure[leaving]
    return speeds.fixed_s * factor, speeds.per_sample_s * factor


def of_spare(state: ControlState, spare: Spare) -> Prospect:
    """The steps with and without a spare, which is as fast as it showed last."""
    a, b = assumed_costs(state.speeds, state.weights)
    exchange_s = state.oversight.recent_exchange_s
    without_s = _compute_s(state, a, b, state.max_samples) + exchange_s
    a = np.append(a, spare.fixed_s * spare.slowdown)
    b = np.append(b, spare.per_sample_s * spare.slowdown)
    ceilings = np.append(state.max_samples, spare.max_samples)
    longer_s = exchange_s * _ring_s(len(a), 1.0) / _ring_s(max(len(a) - 1, 2), 1.0)
    if spare.trouble != COMPUTE or len(state.members) == 1:  # nothing shows how that has changed
        longer_s = max(longer_s, spare.exchange_s)
    with_s = max(_compute_s(state, a, b, ceilings), spare.least_now_s)
    return Prospect(with_s=max(with_s + longer_s, spare.together_s), without_s=without_s)


def _compute_s(state: ControlState, a: Floats, b: Floats, ceilings: Shares) -> float:
    options = state.options
    shares = balanced(options.global_batch, a, b, minimum=options.minimum, maximum=ceilings)
    return slowest_s(shares, a, b)


def _ring_ratio(hop_s: Floats, kept: Shares) -> float:
    """How long the exchange of some members takes, as a fraction of everybody's."""
    return float(_ring_ratios(hop_s, kept)[-1])


def _ring_ratios(hop_s: Floats, order: Shares) -> Floats:
    """How long the exchange of the first 1, 2, … of these takes, as a fraction of everybody's."""
    alone = np.where(np.arange(len(order)) > 0, 1.0, 0.0)  # who is alone exchanges nothing
    if len(hop_s) < 2 or not (np.isfinite(hop_s).all() and hop_s.max() > 0):
        return alone
    rings_s = (1 - 1 / np.arange(1, len(order) + 1)) * np.maximum.accumulate(hop_s[order])
    ratios: Floats = rings_s / ((1 - 1 / len(hop_s)) * hop_s.max())
    return ratios


def _ring_s(num_members: int, hop_s: float) -> float:
    """An exchange, up to a factor, in which the slowest hop takes so long."""
    return all_reduce_s("ring", num_members, num_bytes=1.0, link=LinkCost(0.0, hop_s))
