# SPDX-License-Identifier: Apache-2.0
"""What a worker is worth: the predicted step with it, and without it.

A step is the slowest worker's a + b·n under the best cut, and the exchange. Taking a worker out

- leaves its samples to the others: more computing, unless even its least share takes longer than that;
- makes the ring shorter, and as fast as the worst hop that is left: by the cost model 2(p − 1)/p times
  what the slowest hop takes. Where nobody says how long hops take, the exchange is taken to stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gangline.control.shares.rebalance import needed_certainty
from gangline.control.shares.speeds import assumed_costs
from gangline.planning.allocation.balanced import balanced, slowest_s
from gangline.planning.cost.model import LinkCost, all_reduce_s

if TYPE_CHECKING:
    from gangline.control.state import ControlState
    from gangline.control.stragglers.oversight import Spare
    from gangline.planning.allocation.bounds import Floats, Shares


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


def of_member(state: ControlState, rank: int) -> Prospect | None:
    """The steps with and without a member; None where the others could not hold the batch.

    The member is taken to be as fast as its measurements allow. Where it has its least share already,
    it takes what it took in the fastest of the last steps at least.
    """
    others = np.delete(np.arange(len(state.members)), rank)
    if not len(others) or state.max_samples[others].sum() < state.options.global_batch:
        return None
    speeds, shares = state.speeds, state.shares
    a, b = speeds.fixed_s.copy(), speeds.per_sample_s.copy()
    certainty = needed_certainty(len(a), is_doubtful=False)
    predicted_s = float(a[rank] + b[rank] * shares[rank])
    doubt_s = certainty * float(speeds.standard_error_s(shares)[rank])
    sure = max(1 - doubt_s / predicted_s, 0.1) if predicted_s > 0 else 1.0
    a[rank], b[rank] = a[rank] * sure, b[rank] * sure
    exchange_s = state.oversight.recent_exchange_s
    with_s = _compute_s(state, a, b, state.max_samples)
    if shares[rank] <= state.options.minimum:  # there is nothing to guess
        with_s = float(np.fmax(with_s, state.oversight.least_s[rank]))
    return Prospect(
        with_s=with_s + exchange_s,
        without_s=_compute_s(state, a[others], b[others], state.max_samples[others])
        + exchange_s * _ring_ratio(state.oversight.hop_s, others),
    )


def of_spare(state: ControlState, spare: Spare) -> Prospect:
    """The steps with and without a spare, which is as fast as it showed last."""
    a, b = assumed_costs(state.speeds, state.weights)
    exchange_s = state.oversight.recent_exchange_s
    without_s = _compute_s(state, a, b, state.max_samples) + exchange_s
    a = np.append(a, spare.fixed_s * spare.slowdown)
    b = np.append(b, spare.per_sample_s * spare.slowdown)
    ceilings = np.append(state.max_samples, spare.max_samples)
    longer = _ring_s(len(a), 1.0) / _ring_s(max(len(a) - 1, 2), 1.0)
    with_s = max(_compute_s(state, a, b, ceilings), spare.least_now_s)
    return Prospect(with_s=with_s + exchange_s * longer, without_s=without_s)


def _compute_s(state: ControlState, a: Floats, b: Floats, ceilings: Shares) -> float:
    options = state.options
    shares = balanced(options.global_batch, a, b, minimum=options.minimum, maximum=ceilings)
    return slowest_s(shares, a, b)


def _ring_ratio(hop_s: Floats, others: Shares) -> float:
    """How long the others' exchange takes, as a fraction of everybody's."""
    if not np.isfinite(hop_s).all():
        return 1.0
    whole_s, rest_s = (_ring_s(len(part), float(part.max())) for part in (hop_s, hop_s[others]))
    return rest_s / whole_s if whole_s > 0 else 1.0


def _ring_s(num_members: int, hop_s: float) -> float:
    """An exchange, up to a factor, in which the slowest hop takes so long."""
    return all_reduce_s("ring", num_members, num_bytes=1.0, link=LinkCost(0.0, hop_s))
