# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU is better off alone, found out by trying.

What a step costs alone is else predicted from what steps cost in company. Where a GPU waits for the
script that gives it its work, that says little: in company the two take turns in every step, because
all must know when the gradients are there; alone the script runs ahead, and they work at the same time.
And what members share, such as a GPU's memory or a host's cores, is the one's alone.

So where the fastest member's script did not wait for its GPU, that member goes on alone for a few
steps, once it is known what steps take with all. If they are not shorter, the others are taken back,
and it is not tried again for a long while. A GPU that is waited for computes all the time: it is not
tried, and neither are CPUs.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control.commands import Command, Say
from gangline.control.shares.rebalance import SETTLED
from gangline.control.stragglers.exclusion import Prospect, Selection
from gangline.control.stragglers.manager import exclude, may_exclude
from gangline.control.stragglers.oversight import ALONE
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from gangline.control.inputs import StepMeasured
    from gangline.control.state import ControlState

FIRST_STEPS = 2
"""Of a view: they pay for what the following ones find ready."""
STEPS = 8
"""So many steps are compared, in company and alone."""
HURRIED = 0.25
"""A script that waits for its GPU for less than this part of computing is what sets the pace."""
GAIN = 0.02
"""How much shorter steps must be alone."""
REST_S = 300.0
"""A trial that failed is made again after so long, and then after twice as long."""


class Solo(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of the present view, and the trial, if one is under way."""

    view: int = -1
    """Whose the last steps are."""
    step_s: tuple[float, ...] = ()
    waited: tuple[float, ...] = ()
    """The part of its computing for which the fastest member waited for its GPU."""
    company_s: float = 0.0
    """While a trial is under way, what a step took with all; else 0."""
    rest_s: float = REST_S
    """How long to wait after the next trial that fails."""
    next_s: float = -float("inf")
    """When the next trial may be made."""

    def seen(self, view: int, step_s: float, waited: float) -> Solo:
        """One more step; another view begins anew."""
        if view != self.view:
            return msgspec.structs.replace(self, view=view, step_s=(), waited=())
        return msgspec.structs.replace(
            self,
            step_s=(*self.step_s, step_s)[-STEPS:],
            waited=(*self.waited, waited)[-STEPS:],
        )

    @property
    def is_full(self) -> bool:
        """Whether enough steps of one view are known."""
        return len(self.step_s) == STEPS


def try_alone(
    state: ControlState, event: StepMeasured, now: float
) -> tuple[ControlState, list[Command]]:
    """Begins a trial where one is called for, and ends the one that is under way."""
    if state.steps_in_view <= FIRST_STEPS or not np.isfinite(event.step_s):
        return state, []
    fastest = _fastest(state)
    solo = state.solo.seen(event.view, event.step_s, _waited(state, event, fastest))
    state = msgspec.structs.replace(state, solo=solo)
    if solo.company_s and len(state.members) > 1:  # somebody came back, or came in
        solo = msgspec.structs.replace(solo, company_s=0.0)
        state = msgspec.structs.replace(state, solo=solo)
    if not solo.is_full:
        return state, []
    if solo.company_s:
        return _end_trial(state, event.step, now)
    return _begin_trial(state, fastest, event.step, now)


def _fastest(state: ControlState) -> int:
    """The rank of the member that takes least for a sample."""
    shares = np.maximum(state.shares, 1)
    return int((state.speeds.predicted_s(shares) / shares).argmin())


def _waited(state: ControlState, event: StepMeasured, rank: int) -> float:
    """The part of its computing for which it waited for its GPU; 1 where nobody says so."""
    worker = state.members[rank]
    if event.waited_s is None or worker not in event.workers:
        return 1.0
    place = event.workers.index(worker)
    waited_s, compute_s = float(event.waited_s[place]), float(event.compute_s[place])
    return waited_s / compute_s if waited_s >= 0 and compute_s > 0 else 1.0


def _begin_trial(
    state: ControlState, rank: int, step: int, now: float
) -> tuple[ControlState, list[Command]]:
    solo = state.solo
    is_known = int(state.speeds.observed.min()) >= SETTLED
    can_hold = bool(state.max_samples[rank] >= state.options.global_batch)
    is_in_step = state.options.whole is None
    may_be = may_exclude(state) and is_in_step and is_known and can_hold and now >= solo.next_s
    if not may_be or median(solo.waited) >= HURRIED:
        return state, []
    company_s = median(solo.step_s)
    leaving = tuple(other for other in range(len(state.members)) if other != rank)
    reason = (
        f"worker {state.members[rank]} waits for its GPU for {median(solo.waited):.0%} of what it "
        f"computes: its script sets the pace, and may be faster alone than the {company_s:.4g} s of a "
        f"step with all. That is tried for {FIRST_STEPS + STEPS} steps"
    )
    found = Selection(leaving, Prospect(with_s=company_s, without_s=company_s))
    state = msgspec.structs.replace(state, solo=msgspec.structs.replace(solo, company_s=company_s))
    return exclude(state, found, step, now, trial=reason)


def _end_trial(state: ControlState, step: int, now: float) -> tuple[ControlState, list[Command]]:
    solo = state.solo
    company_s, alone_s = solo.company_s, median(solo.step_s)
    is_better = alone_s < (1 - GAIN) * company_s
    worker = state.members[0]
    numbers = {"step": float(step), "worker": float(worker)}
    numbers |= {"with_s": company_s, "without_s": alone_s}
    times = f"a step takes {alone_s:.4g} s alone and {company_s:.4g} s with all"
    solo = msgspec.structs.replace(solo, company_s=0.0)
    if is_better:
        reason = f"step {step}: worker {worker} goes on alone: {times}"
        state = msgspec.structs.replace(state, solo=solo)
        return state, [Say(decision=Decision(t=now, what="alone", reason=reason, numbers=numbers))]
    solo = msgspec.structs.replace(solo, next_s=now + solo.rest_s, rest_s=2 * solo.rest_s)
    oversight = state.oversight
    for spare in oversight.spares:
        if spare.trouble == ALONE:  # they are called when they next show themselves
            oversight = oversight.with_spare(
                msgspec.structs.replace(spare, trial_s=0.0, together_s=0.0)
            )
    reason = f"step {step}: the others are taken back: {times}"
    decision = Decision(t=now, what="alone", reason=reason, numbers=numbers)
    state = msgspec.structs.replace(state, solo=solo, oversight=oversight)
    return state, [Say(decision=decision)]
