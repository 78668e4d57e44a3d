# SPDX-License-Identifier: Apache-2.0
"""Before the first exchange: whether it will take so long that fewer members would be faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control.inputs import WorkersLost
from gangline.control.members.membership import lose
from gangline.control.shares.speeds import FIRST_FIXED_FRACTION
from gangline.control.stragglers.exclusion import find_surplus
from gangline.control.stragglers.manager import EVIDENT_GAIN, exclude, may_exclude
from gangline.control.stragglers.trouble import by_rank

if TYPE_CHECKING:
    from gangline.control.commands import Command
    from gangline.control.inputs import StepMeasured
    from gangline.control.state import ControlState


def weigh(
    state: ControlState, expected: StepMeasured, now: float
) -> tuple[ControlState, list[Command]]:
    """A first step is computed, and not exchanged: where that will evidently take too long, it is not.

    What a first step computes may take many times as long as usual, and not on all members alike. So
    it is computed once more before anybody is left out.
    """
    view, is_first = state.view, not state.oversight.has_weighed
    oversight = msgspec.structs.replace(state.oversight, has_weighed=True)
    state = msgspec.structs.replace(state, oversight=oversight)
    if view is None or expected.view != view.number or not may_exclude(state):
        return state, []
    weighed = _as_weighed(state, expected)
    found = None if weighed is None else find_surplus(weighed)
    if weighed is None or found is None:
        return state, []
    # Whoever is slow in its first steps may be fast later: it must be the exchange that takes long.
    part = weighed.oversight.recent_exchange_s / found.prospect.with_s
    if min(part, found.prospect.exclusion_gain) < EVIDENT_GAIN:
        return state, []
    if not is_first:
        return exclude(weighed, found, expected.step, now)
    reason = (
        f"step {expected.step}: by a probe of the links a step takes {found.prospect.with_s:.4g} s, "
        f"and {found.prospect.without_s:.4g} s without {len(found.leaving)} of the members: it is "
        "computed once more before they are left out"
    )
    return lose(state, WorkersLost(workers=(), reason=reason), now)


def _as_weighed(state: ControlState, expected: StepMeasured) -> ControlState | None:
    """The state as it would be after such a step; None where something is missing."""
    compute_s = by_rank(state, expected.workers, expected.compute_s)
    samples = by_rank(state, expected.workers, expected.samples.astype(float))
    assert compute_s is not None
    assert samples is not None
    if not (np.isfinite(compute_s).all() and (compute_s > 0).all() and (samples > 0).all()):
        return None
    # Exchanging is hidden by computing at best.
    left_s = max(expected.exchange_s - float(compute_s.max()), 0.0)
    fixed_s = FIRST_FIXED_FRACTION * compute_s
    speeds = msgspec.structs.replace(
        state.speeds, fixed_s=fixed_s, per_sample_s=(compute_s - fixed_s) / samples
    )
    oversight = msgspec.structs.replace(
        state.oversight, exchange_s=np.full(len(state.oversight.exchange_s), left_s)
    )
    return msgspec.structs.replace(state, speeds=speeds, oversight=oversight)
