# SPDX-License-Identifier: Apache-2.0
"""Workers that an operator keeps out: spares like others, but they come back by an order alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from gangline.control.commands import Command, Say, TakeBack
from gangline.control.members.membership import without
from gangline.control.stragglers.oversight import ORDER, Spare
from gangline.control.views import cut, publish
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from gangline.control.inputs import ExclusionAsked, ReturnAsked
    from gangline.control.state import ControlState

CALL_S = 10.0
"""A spare that was asked back and did not come is asked again after this."""


def keep_out(
    state: ControlState, event: ExclusionAsked, now: float
) -> tuple[ControlState, list[Command]]:
    """A view without the worker, which holds at once; of who is out already, only why changes."""
    worker, reason = event.worker, f"worker {event.worker} is kept out: an operator asked for it"
    spare = _spare(state, event, now)
    members, fewer = without(state, (worker,))
    if not members:
        return state, []  # nobody would go on
    oversight = fewer.oversight.with_spare(spare)
    times = oversight.exclusions.get(worker, 0) + 1
    oversight = msgspec.structs.replace(
        oversight,
        exclusions={**oversight.exclusions, worker: times},
        lowered=oversight.lowered - {worker},
    )
    said = Say(
        decision=Decision(t=now, what="exclude", reason=reason, numbers={"worker": float(worker)})
    )
    fewer = msgspec.structs.replace(fewer, oversight=oversight)
    if len(members) == len(state.members):
        return msgspec.structs.replace(state, oversight=oversight), [said]
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
    return fewer, [said, *commands]


def ask_back(
    state: ControlState, event: ReturnAsked, now: float
) -> tuple[ControlState, list[Command]]:
    """The worker is called when it next shows itself, whatever it shows."""
    spare = state.oversight.spare(event.worker)
    if spare is None:
        return state, []
    called = msgspec.structs.replace(spare, trouble=ORDER, called_s=-math.inf)
    decision = Decision(
        t=now,
        what="take_back",
        reason=f"worker {event.worker} is taken back: an operator asked for it",
        numbers={"worker": float(event.worker), "out_s": now - spare.since_s},
    )
    oversight = state.oversight.with_spare(called)
    return msgspec.structs.replace(state, oversight=oversight), [Say(decision=decision)]


def call_ordered(
    state: ControlState, spare: Spare, now: float
) -> tuple[ControlState, list[Command]]:
    """A worker that was kept out shows itself: it is called if somebody wants it back."""
    if spare.called_s is None or now - spare.called_s < CALL_S:
        return state, []
    called = msgspec.structs.replace(spare, called_s=now)
    oversight = state.oversight.with_spare(called)
    state = msgspec.structs.replace(state, oversight=oversight)
    return state, [TakeBack(worker=spare.worker)]


def _spare(state: ControlState, event: ExclusionAsked, now: float) -> Spare:
    """What is known of the worker, which may be a member, a spare, or neither."""
    known = state.oversight.spare(event.worker)
    if known is not None:
        return msgspec.structs.replace(known, trouble=ORDER, called_s=None)
    is_member = event.worker in state.members
    rank = state.members.index(event.worker) if is_member else -1
    speeds = state.speeds
    return Spare(
        worker=event.worker,
        trouble=ORDER,
        fixed_s=float(speeds.fixed_s[rank]) if is_member else math.nan,
        per_sample_s=float(speeds.per_sample_s[rank]) if is_member else math.nan,
        least_s=0.0,
        is_changed=False,
        exchange_s=state.oversight.recent_exchange_s,
        max_samples=event.max_samples,
        since_s=now,
        pause_s=0.0,
        trial_s=0.0,
    )
