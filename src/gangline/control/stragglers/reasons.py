# SPDX-License-Identifier: Apache-2.0
"""Why workers are left out or taken back, in words and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gangline.control.stragglers.exclusion import least_possible_s
from gangline.control.stragglers.oversight import ALONE, COMPUTE, EXCHANGE, LINK, SLOWER
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from gangline.control.state import ControlState
    from gangline.control.stragglers.exclusion import Prospect, Selection
    from gangline.control.stragglers.oversight import Spare


def trouble_of(state: ControlState, rank: int, prospect: Prospect) -> str:
    """Why a member goes: its link, its own computing, or what exchanging costs."""
    hop_s = state.oversight.hop_s
    is_linked = bool(hop_s[rank] > SLOWER * np.median(np.delete(hop_s, rank)))
    if is_linked or state.oversight.in_trouble[LINK][rank]:
        return LINK
    is_late = bool(least_possible_s(state)[rank] > prospect.without_s)
    return COMPUTE if is_late else EXCHANGE


def why_excluded(state: ControlState, found: Selection, rank: int) -> str:
    """What is wrong with one of those that go, and what it costs."""
    oversight, prospect, worker = state.oversight, found.prospect, state.members[rank]
    trouble = trouble_of(state, rank, prospect)
    if trouble == LINK:
        others = np.delete(oversight.hop_s, rank)
        cause = (
            f"a MiB takes {oversight.hop_s[rank]:.4g} s over the link of worker {worker}, "
            f"{np.median(others):.4g} s over the others'"
        )
    elif trouble == EXCHANGE:
        cause = (
            f"{len(state.members)} members exchange for {oversight.recent_exchange_s:.4g} s of each "
            f"step, more than worker {worker} saves by computing"
        )
    else:
        least_s = least_possible_s(state)[rank]
        cause = (
            f"worker {worker} needs {least_s:.4g} s for the least share that it can have, "
            f"{state.options.minimum} of {state.options.global_batch} samples"
        )
    more = len(found.leaving) - 1
    without_whom = f"it and {more} more" if more else "it"
    known = (
        f"and this has cost {oversight.lost_s[rank]:.1f} s in {oversight.lost_steps[rank]} steps"
        if oversight.lost_steps[rank]
        else "as a probe of the links says before the first exchange"
    )
    return (
        f"{cause}; without {without_whom} a step takes {prospect.without_s:.4g} s instead of "
        f"{prospect.with_s:.4g} s, {prospect.exclusion_gain:.0%} less, {known}"
    )


def exclusion_numbers(
    state: ControlState, found: Selection, rank: int, step: int
) -> dict[str, float]:
    """The same in numbers."""
    oversight = state.oversight
    return {
        "step": float(step),
        "worker": float(state.members[rank]),
        "workers": float(len(found.leaving)),
        "with_s": found.prospect.with_s,
        "without_s": found.prospect.without_s,
        "gain": found.prospect.exclusion_gain,
        "exchange_s": oversight.recent_exchange_s,
        "lost_s": float(oversight.lost_s[rank]),
        "lost_steps": float(oversight.lost_steps[rank]),
    }


def return_decision(
    spare: Spare, prospect: Prospect, *, is_shown: bool, out_s: float, now: float
) -> Decision:
    """That a spare is asked back, and why."""
    shown = f"worker {spare.worker} shows {spare.slowdown:.2f} times its first time"
    if is_shown:
        then = f"with it a step takes {prospect.with_s:.4g} s instead of {prospect.without_s:.4g} s"
    elif spare.trouble == ALONE:
        then = f"it is taken back after {out_s:.0f} s in which another one was alone"
    else:
        then = f"it is tried after {out_s:.0f} s ({spare.trouble} trouble)"
    return Decision(
        t=now,
        what="take_back",
        reason=f"{shown}; {then}",
        numbers={
            "worker": float(spare.worker),
            "slowdown": spare.slowdown,
            "with_s": prospect.with_s,
            "without_s": prospect.without_s,
            "out_s": out_s,
        },
    )
