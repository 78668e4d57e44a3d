# SPDX-License-Identifier: Apache-2.0
"""The runtime manager: what is done about a worker that slows the others down, rung by rung.

1. Its share shrinks. That is `rebalance`: shares follow speeds at every step, with no verdict needed.
2. Its team's rate is lowered, where teams train at their own pace: then the others wait less.
3. It is excluded, where the predicted step is shorter without it by `EXCLUSION_GAIN`. Under `balanced`
   this is so only if even its least share is what everybody waits for, or its link is.
4. It is on probation: a spare that shows again and again how fast it is.
5. It rejoins, where the predicted step is no longer with it.

Excluding costs something, and may be wrong. So it is done when waiting has cost as much as excluding
and taking back would: `exclusion_cost_s`. Whoever recovers before that was right to be waited for, and
whoever does not has cost at most twice what was unavoidable. Beside that, `PATIENCE` steps must have
passed where a detector says that something happened to the worker, or it was excluded before, and
`LONG_PATIENCE` where it has been as slow as that all the time.

Each time the same worker is excluded, it stays out for twice as long at least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control.commands import Command, LowerRate, Say, TakeBack
from gangline.control.members.membership import without
from gangline.control.stragglers.exclusion import Prospect, of_member, of_spare
from gangline.control.stragglers.oversight import COMPUTE, LINK, SLOWER, Oversight, Spare
from gangline.control.views import cut, publish
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from gangline.control.inputs import SpareMeasured
    from gangline.control.state import ControlState

EXCLUSION_GAIN = 0.1
"""How much shorter a step must get without a worker."""
PATIENCE, LONG_PATIENCE = 10, 40
"""Steps in a row for which that must hold."""
GOOD_SHOWINGS = 3
"""Showings in a row that say that a spare would not hold the others up."""
PAUSES = 1.0
"""A spare is out for so many times `exclusion_cost_s` at least, the first time."""
TRIALS = {COMPUTE: 150.0, LINK: 15.0}
"""After so many times `exclusion_cost_s` it is tried, whatever it shows. Nothing travels over the link
of a spare, so who had trouble with that can show itself by being tried only."""
MAX_PAUSE_S, MAX_TRIAL_S = 600.0, 3600.0
CALL_S = 10.0
"""A spare that was asked back and did not come is asked again after this."""


def climb(state: ControlState, step: int, now: float) -> tuple[ControlState, list[Command], bool]:
    """The next rung for whoever holds the others up; the last value: whether it was excluded."""
    if state.options.allocation != "balanced" or not state.options.may_exclude:
        return state, [], False
    found = _find_worst(state)
    state = _count(state, found)
    if found is None:
        return state, [], False
    rank, prospect = found
    if not _is_enough(state, rank):
        return state, [], False
    if state.options.whole is not None and not _is_lowered(state, rank):
        return *_lower_rate(state, rank, prospect, step, now), False
    return *_exclude(state, rank, prospect, step, now), True


def note_spare(
    state: ControlState, event: SpareMeasured, now: float
) -> tuple[ControlState, list[Command]]:
    """A spare shows how fast it is; where that is enough, it is asked back."""
    spare = state.oversight.spare(event.worker)
    if spare is None or state.view is None:
        return state, []
    first = spare.first_slowdown or event.slowdown
    spare = msgspec.structs.replace(spare, slowdown=event.slowdown, first_slowdown=first)
    prospect = of_spare(state, spare)
    is_good = prospect.return_gain > -state.options.minimum_gain
    spare = msgspec.structs.replace(spare, num_good=spare.num_good + 1 if is_good else 0)
    out_s = now - spare.since_s
    is_shown = spare.num_good >= GOOD_SHOWINGS and spare.trouble == COMPUTE
    is_due = (is_shown and out_s >= spare.pause_s) or out_s >= spare.trial_s
    is_called = spare.called_s is not None and now - spare.called_s < CALL_S
    if not is_due or is_called:
        return _with(state, state.oversight.with_spare(spare)), []
    spare = msgspec.structs.replace(spare, called_s=now)
    decision = _return_decision(spare, prospect, is_shown=is_shown, out_s=out_s, now=now)
    state = _with(state, state.oversight.with_spare(spare))
    return state, [Say(decision=decision), TakeBack(worker=spare.worker)]


# --- who holds the others up ---------------------------------------------------------------------


def _find_worst(state: ControlState) -> tuple[int, Prospect] | None:
    """The member without which a step would be shortest, if that is worth it; and by how much."""
    if state.steps_in_view < 2 or not _may_lose_one(state):
        return None
    found = [(rank, of_member(state, rank)) for rank in sorted(_suspects(state))]
    worth = [
        (rank, prospect)
        for rank, prospect in found
        if prospect is not None and prospect.exclusion_gain > EXCLUSION_GAIN
    ]
    return max(worth, key=lambda one: one[1].exclusion_gain, default=None)


def _suspects(state: ControlState) -> set[int]:
    """Whom shrinking its share cannot help: at the least share already, or with a bad link."""
    oversight, speeds = state.oversight, state.speeds
    suspects: set[int] = set()
    takes_s = np.fmax(speeds.predicted_s(state.shares), oversight.least_s)
    slowest = int(takes_s.argmax())
    if state.shares[slowest] <= state.options.minimum and (speeds.observed > 0).all():
        suspects.add(slowest)
    linked = np.flatnonzero(oversight.in_trouble[LINK])
    if len(linked) and (speeds.observed > 0).all():
        suspects.add(int(linked[oversight.hop_s[linked].argmax()]))
    return suspects


def _may_lose_one(state: ControlState) -> bool:
    """Whether most workers still take part without one more: else something else is wrong."""
    num_left = len(state.members) - 1
    return num_left >= 1 and num_left > len(state.oversight.spares)


def _count(state: ControlState, found: tuple[int, Prospect] | None) -> ControlState:
    """Adds what this step has cost because of one member; the others' accounts are closed."""
    oversight = state.oversight
    lost_s = np.zeros_like(oversight.lost_s)
    lost_steps = np.zeros_like(oversight.lost_steps)
    if found is None and not oversight.lost_steps.any():
        return state
    if found is not None:
        rank, prospect = found
        lost_s[rank] = oversight.lost_s[rank] + prospect.with_s - prospect.without_s
        lost_steps[rank] = oversight.lost_steps[rank] + 1
    return _with(state, msgspec.structs.replace(oversight, lost_s=lost_s, lost_steps=lost_steps))


def _is_enough(state: ControlState, rank: int) -> bool:
    oversight = state.oversight
    is_flagged = any(oversight.in_trouble[kind][rank] for kind in (COMPUTE, LINK))
    is_suspect = is_flagged or state.members[rank] in oversight.exclusions
    patience = PATIENCE if is_suspect else LONG_PATIENCE
    is_patient = bool(oversight.lost_steps[rank] >= patience)
    return is_patient and bool(oversight.lost_s[rank] >= state.options.exclusion_cost_s)


# --- rungs ---------------------------------------------------------------------------------------


def _is_lowered(state: ControlState, rank: int) -> bool:
    return state.members[rank] in state.oversight.lowered


def _lower_rate(
    state: ControlState, rank: int, prospect: Prospect, step: int, now: float
) -> tuple[ControlState, list[Command]]:
    """The team of a slow member is merged more rarely; its account begins anew."""
    worker, whole, oversight = state.members[rank], state.options.whole, state.oversight
    assert whole is not None
    reason = (
        f"step {step}: {_why(state, rank, prospect)}; its team {whole.team} is merged more rarely"
    )
    numbers = _numbers(state, rank, prospect, step) | {"team": float(whole.team)}
    state = _with(
        state,
        msgspec.structs.replace(
            oversight,
            lowered=oversight.lowered | {worker},
            lost_s=np.zeros_like(oversight.lost_s),
            lost_steps=np.zeros_like(oversight.lost_steps),
        ),
    )
    decision = Decision(t=now, what="lower_rate", reason=reason, numbers=numbers)
    return state, [Say(decision=decision), LowerRate(worker=worker, team=whole.team)]


def _exclude(
    state: ControlState, rank: int, prospect: Prospect, step: int, now: float
) -> tuple[ControlState, list[Command]]:
    """A view without the member, which holds at once: nobody waits for its present step."""
    worker, oversight = state.members[rank], state.oversight
    reason = f"step {step}: {_why(state, rank, prospect)}"
    numbers = _numbers(state, rank, prospect, step)
    members, fewer = without(state, (worker,))
    times = oversight.exclusions.get(worker, 0) + 1
    after = fewer.oversight.with_spare(_spare(state, rank, times=times, now=now))
    after = msgspec.structs.replace(
        after, exclusions={**oversight.exclusions, worker: times}, lowered=after.lowered - {worker}
    )
    fewer = _with(fewer, after)
    decision = Decision(t=now, what="exclude", reason=reason, numbers=numbers)
    fewer, commands = publish(
        fewer,
        members=members,
        shares=cut(fewer),
        reason=f"{reason}; {len(members)} of {len(state.members)} members go on",
        numbers={"excluded": float(worker), "members": float(len(members))},
        now=now,
        is_new_group=True,
        is_recovery=True,
    )
    return fewer, [Say(decision=decision), *commands]


def _spare(state: ControlState, rank: int, *, times: int, now: float) -> Spare:
    oversight = state.oversight
    trouble = LINK if oversight.in_trouble[LINK][rank] else COMPUTE
    cost_s = state.options.exclusion_cost_s
    takes_s = np.fmax(state.speeds.predicted_s(state.shares), oversight.least_s)[rank]
    return Spare(
        worker=state.members[rank],
        trouble=trouble,
        fixed_s=float(oversight.healthy_fixed_s[rank]),
        per_sample_s=float(oversight.healthy_per_sample_s[rank]),
        least_s=float(takes_s) if trouble == COMPUTE else 0.0,
        is_changed=bool(oversight.slowdown(state.speeds, state.shares)[rank] > SLOWER),
        max_samples=int(state.max_samples[rank]),
        since_s=now,
        pause_s=min(PAUSES * cost_s * 2 ** (times - 1), MAX_PAUSE_S),
        trial_s=min(TRIALS[trouble] * cost_s * 2 ** (times - 1), MAX_TRIAL_S),
    )


# --- reasons -------------------------------------------------------------------------------------


def _why(state: ControlState, rank: int, prospect: Prospect) -> str:
    oversight, worker = state.oversight, state.members[rank]
    if oversight.in_trouble[LINK][rank]:
        others = np.delete(oversight.hop_s, rank)
        cause = (
            f"the hops of worker {worker} take {oversight.hop_s[rank]:.4g} s, the others' "
            f"{np.median(others):.4g} s"
        )
    else:
        predicted_s = state.speeds.predicted_s(state.shares)[rank]
        takes_s = float(np.fmax(predicted_s, oversight.least_s[rank]))
        cause = (
            f"worker {worker} needs {takes_s:.4g} s for the least share that it can have, "
            f"{state.shares[rank]} of {state.options.global_batch} samples"
        )
    return (
        f"{cause}; without it a step takes {prospect.without_s:.4g} s instead of "
        f"{prospect.with_s:.4g} s, {prospect.exclusion_gain:.0%} less, and it has cost "
        f"{oversight.lost_s[rank]:.1f} s in {oversight.lost_steps[rank]} steps"
    )


def _numbers(state: ControlState, rank: int, prospect: Prospect, step: int) -> dict[str, float]:
    oversight = state.oversight
    return {
        "step": float(step),
        "worker": float(state.members[rank]),
        "with_s": prospect.with_s,
        "without_s": prospect.without_s,
        "gain": prospect.exclusion_gain,
        "lost_s": float(oversight.lost_s[rank]),
        "lost_steps": float(oversight.lost_steps[rank]),
    }


def _return_decision(
    spare: Spare, prospect: Prospect, *, is_shown: bool, out_s: float, now: float
) -> Decision:
    shown = f"worker {spare.worker} shows {spare.slowdown:.2f} times its first time"
    then = (
        f"with it a step takes {prospect.with_s:.4g} s instead of {prospect.without_s:.4g} s"
        if is_shown
        else f"it is tried after {out_s:.0f} s ({spare.trouble} trouble)"
    )
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


def _with(state: ControlState, oversight: Oversight) -> ControlState:
    return msgspec.structs.replace(state, oversight=oversight)
