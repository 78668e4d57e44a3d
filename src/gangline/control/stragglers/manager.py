# SPDX-License-Identifier: Apache-2.0
"""The runtime manager: what is done about a worker that slows the others down, rung by rung.

1. Its share shrinks. That is `rebalance`: shares follow speeds at every step, with no verdict needed.
2. Its team's rate is lowered, where teams train at their own pace: then the others wait less.
3. It is excluded, where the predicted step is shorter without it by `EXCLUSION_GAIN`; several at once,
   where it is shortest without them. Under `balanced` this is so if even a worker's least share is what
   everybody waits for, or if exchanging with it costs more than it saves: the fastest may go on alone.
4. It is on probation: a spare that shows again and again how fast it is.
5. It rejoins, where the predicted step is no longer with it.

Excluding costs something, and may be wrong. Where a detector says that something happened to a worker,
it may be over soon. So it is waited for `PATIENCE` steps at least, and until that has cost as much as
excluding and taking back would: `exclusion_cost_s`. Whoever recovers before that was right to be waited
for, and whoever does not has cost at most twice what was unavoidable. Workers that have been like that
all the time are not waited for: `QUICK_PATIENCE` steps that say the same are enough, where they have
cost as much as a new group does. And where what they exchange makes steps several times as long,
`EVIDENT_PATIENCE` steps are: over a slow network, each may take many seconds. Not so where exchanging
was quick before: then something happened to a link, and it takes some steps until it is known to whose.
Where a probe of the links says the same before the first exchange, that is broken off (`weighing.py`).

Each time the same worker is excluded, it stays out for twice as long at least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control.commands import Command, LowerRate, Say, TakeBack
from gangline.control.members.membership import without
from gangline.control.shares.rebalance import SETTLED
from gangline.control.stragglers.exclusion import find_surplus, of_spare
from gangline.control.stragglers.ordered import CALL_S, call_ordered
from gangline.control.stragglers.oversight import (
    ALONE,
    COMPUTE,
    EXCHANGE,
    LINK,
    ORDER,
    SLOWER,
    Oversight,
    Spare,
)
from gangline.control.stragglers.reasons import (
    exclusion_numbers,
    return_decision,
    trouble_of,
    why_excluded,
)
from gangline.control.views import cut, publish
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from gangline.control.inputs import SpareMeasured
    from gangline.control.state import ControlState
    from gangline.control.stragglers.exclusion import Prospect, Selection

EXCLUSION_GAIN = 0.05
"""How much shorter a step must get without workers, and with a spare that exchanging costs too much."""
PATIENCE, QUICK_PATIENCE, EVIDENT_PATIENCE = 10, 5, 2
"""Steps in a row for which that must hold."""
EVIDENT_GAIN = 0.6
"""Where exchanging makes steps so much longer, few of them are enough: noise does not do that."""
QUICK_COST = 0.1
"""The part of `exclusion_cost_s` that `QUICK_PATIENCE` goes with: what a new group costs at once."""
GOOD_SHOWINGS = 3
"""Showings in a row that say that a spare would not hold the others up."""
PAUSES = 1.0
"""A spare is out for so many times `exclusion_cost_s` at least, the first time."""
TRIALS = {COMPUTE: 150.0, LINK: 15.0, EXCHANGE: 15.0, ALONE: 150.0}
"""After so many times `exclusion_cost_s` it is tried, whatever it shows. Nothing travels over the link
of a spare, so who had trouble with that can show itself by being tried only."""
TRIAL_STEPS = 700
"""A trial costs some seven steps as long as those before it was put out. Where these are long for all,
because of what they exchange, it must not cost more than a hundredth of the time until then."""
MAX_PAUSE_S, MAX_TRIAL_S = 600.0, 3600.0


def climb(state: ControlState, step: int, now: float) -> tuple[ControlState, list[Command], bool]:
    """The next rung for whoever holds the others up; the last value: whether it was excluded."""
    if not may_exclude(state) or state.steps_in_view < 2:
        return state, [], False  # nothing is known of this cut yet: the accounts stay as they are
    found = _find_surplus(state)
    state = _count(state, found)
    if found is None or not _is_enough(state, found):
        return state, [], False
    if state.options.whole is not None and not _is_lowered(state, found):
        return *_lower_rate(state, found, step, now), False
    return *exclude(state, found, step, now), True


def may_exclude(state: ControlState) -> bool:
    """Whether somebody may be left out, and somebody would be there to go on."""
    is_asked = state.options.allocation == "balanced" and state.options.may_exclude
    return is_asked and len(state.members) > 1


def note_spare(
    state: ControlState, event: SpareMeasured, now: float
) -> tuple[ControlState, list[Command]]:
    """A spare shows how fast it is; where that is enough, it is asked back."""
    spare = state.oversight.spare(event.worker)
    if spare is None or state.view is None:
        return state, []
    if spare.trouble == ORDER:
        return call_ordered(state, spare, now)
    first = spare.first_slowdown or event.slowdown
    spare = msgspec.structs.replace(spare, slowdown=event.slowdown, first_slowdown=first)
    prospect = of_spare(state, spare)
    is_costly = spare.trouble in (EXCHANGE, ALONE)
    is_good = prospect.return_gain > (EXCLUSION_GAIN if is_costly else -state.options.minimum_gain)
    is_good &= bool(state.speeds.observed.all())  # else it is compared with nothing
    spare = msgspec.structs.replace(spare, num_good=spare.num_good + 1 if is_good else 0)
    out_s = now - spare.since_s
    is_shown = spare.num_good >= GOOD_SHOWINGS and spare.trouble != LINK
    is_due = (is_shown and out_s >= spare.pause_s) or out_s >= spare.trial_s
    is_called = spare.called_s is not None and now - spare.called_s < CALL_S
    if not is_due or is_called:
        return _with(state, state.oversight.with_spare(spare)), []
    spare = msgspec.structs.replace(spare, called_s=now)
    decision = return_decision(spare, prospect, is_shown=is_shown, out_s=out_s, now=now)
    state = _with(state, state.oversight.with_spare(spare))
    return state, [Say(decision=decision), TakeBack(worker=spare.worker)]


# --- who holds the others up ---------------------------------------------------------------------


def _find_surplus(state: ControlState) -> Selection | None:
    """The members without which a step would be shortest, if that is worth it.

    Speeds are known when they have settled. What is exchanged shows in the first steps.
    """
    observed = int(state.speeds.observed.min())
    if observed < EVIDENT_PATIENCE:
        return None
    found = find_surplus(state)
    if found is None or found.prospect.exclusion_gain <= EXCLUSION_GAIN:
        return None
    return found if observed >= SETTLED or _is_evident(state, found) else None


def _is_evident(state: ControlState, found: Selection) -> bool:
    """Whether it is what they exchange that makes steps several times as long."""
    return found.prospect.exclusion_gain >= EVIDENT_GAIN and all(
        trouble_of(state, rank, found.prospect) != COMPUTE for rank in found.leaving
    )


def _count(state: ControlState, found: Selection | None) -> ControlState:
    """Adds what this step has cost because of some members; the others' accounts are closed."""
    oversight = state.oversight
    lost_s = np.zeros_like(oversight.lost_s)
    lost_steps = np.zeros_like(oversight.lost_steps)
    if found is None and not oversight.lost_steps.any():
        return state
    if found is not None:
        ranks, prospect = np.array(found.leaving), found.prospect
        lost_s[ranks] = oversight.lost_s[ranks] + prospect.with_s - prospect.without_s
        lost_steps[ranks] = oversight.lost_steps[ranks] + 1
    return _with(state, msgspec.structs.replace(oversight, lost_s=lost_s, lost_steps=lost_steps))


def _is_enough(state: ControlState, found: Selection) -> bool:
    """Whether all of these have cost enough; those to whom something happened must have cost more."""
    oversight, ranks = state.oversight, np.array(found.leaving)
    flagged = oversight.in_trouble[COMPUTE][ranks] | oversight.in_trouble[LINK][ranks]
    if oversight.is_exchange_longer:  # links that have changed show it step by step: whose was it?
        troubles = [trouble_of(state, rank, found.prospect) for rank in found.leaving]
        flagged = flagged | (np.array(troubles) != COMPUTE)
    quick = EVIDENT_PATIENCE if _is_evident(state, found) else QUICK_PATIENCE
    patience = np.where(flagged, PATIENCE, quick)
    cost_s = state.options.exclusion_cost_s
    least_s = np.where(flagged, cost_s, QUICK_COST * cost_s)
    is_patient = oversight.lost_steps[ranks] >= patience
    return bool((is_patient & (oversight.lost_s[ranks] >= least_s)).all())


# --- rungs ---------------------------------------------------------------------------------------


def _is_lowered(state: ControlState, found: Selection) -> bool:
    return {state.members[rank] for rank in found.leaving} <= state.oversight.lowered


def _lower_rate(
    state: ControlState, found: Selection, step: int, now: float
) -> tuple[ControlState, list[Command]]:
    """The team of slow members is merged more rarely; their accounts begin anew."""
    whole, oversight = state.options.whole, state.oversight
    assert whole is not None
    workers = [state.members[rank] for rank in found.leaving]
    rank, team = found.leaving[0], whole.team
    reason = (
        f"step {step}: {why_excluded(state, found, rank)}; its team {team} is merged more rarely"
    )
    numbers = exclusion_numbers(state, found, rank, step) | {"team": float(team)}
    state = _with(
        state,
        msgspec.structs.replace(
            oversight,
            lowered=oversight.lowered | {*workers},
            lost_s=np.zeros_like(oversight.lost_s),
            lost_steps=np.zeros_like(oversight.lost_steps),
        ),
    )
    decision = Decision(t=now, what="lower_rate", reason=reason, numbers=numbers)
    return state, [Say(decision=decision), LowerRate(worker=workers[0], team=whole.team)]


def exclude(
    state: ControlState, found: Selection, step: int, now: float, *, trial: str = ""
) -> tuple[ControlState, list[Command]]:
    """A view without these members, which holds at once: nobody waits for their present step.

    `trial` says why, where nothing is wrong with them, and it is tried whether steps get shorter.
    """
    workers, oversight = tuple(state.members[rank] for rank in found.leaving), state.oversight
    decisions = [
        Decision(
            t=now,
            what="exclude",
            reason=f"step {step}: {trial or why_excluded(state, found, rank)}",
            numbers=exclusion_numbers(state, found, rank, step),
        )
        for rank in found.leaving
    ]
    members, fewer = without(state, workers)
    times = {worker: oversight.exclusions.get(worker, 0) + 1 for worker in workers}
    after = fewer.oversight
    for rank, worker in zip(found.leaving, workers, strict=True):
        trouble = ALONE if trial else trouble_of(state, rank, found.prospect)
        spare = _spare(state, rank, found.prospect, trouble=trouble, times=times[worker], now=now)
        after = after.with_spare(spare)
    after = msgspec.structs.replace(
        after,
        exclusions={**oversight.exclusions, **times},
        trials={**oversight.trials, **{one.worker: one.trial_s for one in after.spares}},
        lowered=after.lowered - {*workers},
    )
    fewer = _with(fewer, after)
    fewer, commands = publish(
        fewer,
        members=members,
        shares=cut(fewer),
        reason=f"{decisions[0].reason}; {len(members)} of {len(state.members)} members go on",
        numbers={"excluded": float(workers[0]), "members": float(len(members))},
        now=now,
        is_new_group=True,
        is_recovery=True,
    )
    return fewer, [*(Say(decision=decision) for decision in decisions), *commands]


def _spare(
    state: ControlState, rank: int, prospect: Prospect, *, trouble: str, times: int, now: float
) -> Spare:
    oversight = state.oversight
    cost_s = state.options.exclusion_cost_s
    trial_s = TRIALS[trouble] * cost_s
    if (
        trouble in (LINK, EXCHANGE) and not oversight.in_trouble[LINK][rank]
    ):  # it is what its links are
        trial_s = max(trial_s, TRIAL_STEPS * (prospect.with_s - prospect.without_s))
    trial_s = 2 * oversight.trials.get(state.members[rank], trial_s / 2)
    speeds = state.speeds
    takes_s = np.fmax(speeds.predicted_s(state.shares), oversight.least_s)[rank]
    is_known = bool(np.isfinite(oversight.healthy_per_sample_s[rank]))
    return Spare(
        worker=state.members[rank],
        trouble=trouble,
        fixed_s=float((oversight.healthy_fixed_s if is_known else speeds.fixed_s)[rank]),
        per_sample_s=float(
            (oversight.healthy_per_sample_s if is_known else speeds.per_sample_s)[rank]
        ),
        least_s=float(takes_s) if trouble == COMPUTE else 0.0,
        is_changed=bool(oversight.slowdown(speeds, state.shares)[rank] > SLOWER),
        exchange_s=oversight.recent_exchange_s,
        together_s=prospect.with_s if trouble == ALONE else 0.0,
        max_samples=int(state.max_samples[rank]),
        since_s=now,
        pause_s=min(PAUSES * cost_s * 2 ** (times - 1), MAX_PAUSE_S),
        trial_s=min(trial_s, MAX_TRIAL_S),
    )


def _with(state: ControlState, oversight: Oversight) -> ControlState:
    return msgspec.structs.replace(state, oversight=oversight)
