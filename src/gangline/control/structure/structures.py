# SPDX-License-Identifier: Apache-2.0
"""How the members exchange: what somebody asks for, and what follows from measurements.

A structure is planned when every member was observed `OBSERVATIONS` times, and again when the members
changed and have made some steps, or the plan drifted (see `pace`). It is taken only where the cost
model prefers it to the present one by `MARGIN` of the step. While nothing says that links differ, it is
the ring of all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from gangline.control.commands import Command, KeepPlan, Say
from gangline.control.structure.pace import PATIENCE, WINDOW, Pace, seen
from gangline.control.structure.planner import MARGIN, Proposal, propose
from gangline.control.views import publish
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision
from gangline.spec.exchange.structure import Structure, structure_of

if TYPE_CHECKING:
    from gangline.control.inputs import StepMeasured, StructureAsked
    from gangline.control.state import ControlState

OBSERVATIONS = 8
"""Of every member, before its first plan: its speed at two shares at least, where shares moved."""


def ask_structure(
    state: ControlState, event: StructureAsked, now: float
) -> tuple[ControlState, list[Command]]:
    """Publishes the structure that is asked for; with an outlook, has it planned."""
    view = state.view
    if view is None:
        raise UsageError("nobody has joined yet, so nobody can exchange in another structure")
    if event.outlook is not None:
        options = msgspec.structs.replace(state.options, outlook=event.outlook)
        state = msgspec.structs.replace(state, options=options, pace=Pace())
        if _is_known(state):
            return _planned(state, event.reason, now)
        soon = f"{event.reason}: it is planned when every member was measured {OBSERVATIONS} times"
        return state, [_say("plan_later", soon, {}, now)]
    options = msgspec.structs.replace(state.options, structure=event.structure, outlook=None)
    state = msgspec.structs.replace(state, options=options, pace=Pace())
    if structure_of(event.structure, view.members) == view.structure:
        return state, [_say("keep_structure", f"{event.reason}: it is so already", {}, now)]
    return _restructured(state, event.structure, event.reason, now)


def question_structure(
    state: ControlState, commands: list[Command], *, event: StepMeasured, now: float
) -> tuple[ControlState, list[Command]]:
    """Whether a step that was noted says that it is time to plan; after what it led to already."""
    view = state.view
    is_settled = view is not None and event.view == view.number
    if state.options.outlook is None or not is_settled or math.isnan(event.step_s):
        return state, commands
    pace = seen(state.pace, members=state.members, exchange_s=event.exchange_s, step_s=event.step_s)
    state = msgspec.structs.replace(state, pace=pace)
    reason = _why_now(state, event.step)
    if reason is None:
        return state, commands
    state, more = _planned(state, reason, now, step=event.step)
    return state, commands + more


def _is_known(state: ControlState) -> bool:
    """Whether the members were measured; one alone is planned for only where others are gone."""
    is_planned = len(state.members) > 1 or state.pace.expected_s is not None
    return is_planned and int(state.speeds.observed.min()) >= OBSERVATIONS


def _why_now(state: ControlState, step: int) -> str | None:
    pace = state.pace
    if not _is_known(state):
        return None
    # Where nothing says that links differ there is nothing to gain but a better prediction.
    is_urgent = state.options.outlook is not None and state.options.outlook.knows_links
    if pace.expected_s is None:
        if not is_urgent and not pace.is_full:
            return None
        return f"step {step}: every member was measured {OBSERVATIONS} times"
    if pace.members != state.members:
        # What a step takes without those that went is known only from steps without them.
        if len(pace.step_s) < (OBSERVATIONS if is_urgent else WINDOW):
            return None
        return f"step {step}: the members changed since the last plan"
    if pace.has_drifted:
        return (
            f"step {step}: the last {PATIENCE * WINDOW} steps take {pace.median_step_s:.4g} s, "
            f"{pace.ratio:.2f} times what was expected"
        )
    return None


def _planned(
    state: ControlState, why: str, now: float, *, step: int = -1
) -> tuple[ControlState, list[Command]]:
    """Makes a plan, keeps it, and changes the structure where that is worth it."""
    present = state.view.structure if state.view is not None else None
    try:
        proposal = propose(state)
    except UsageError as error:  # training goes on: what cannot be planned stays as it is
        stays = Pace(members=state.members, expected_s=_measured_s(state) or 0.0)
        failed = _say("plan_failed", f"{why}; the structure stays: {error}", {}, now)
        return msgspec.structs.replace(state, pace=stays), [failed]
    has_drifted = state.pace.has_drifted
    is_taken = (
        proposal.structure != present
        and proposal.structure not in state.pace.left
        and proposal.gain > MARGIN
    )
    expected_s = proposal.step_s if is_taken else proposal.present_s
    if has_drifted and not is_taken:
        expected_s = _measured_s(state) or expected_s
    left = (*state.pace.left, present) if is_taken and has_drifted else state.pace.left
    pace = Pace(members=state.members, expected_s=expected_s, left=left)
    state = msgspec.structs.replace(state, pace=pace)
    kept: list[Command] = [
        KeepPlan(plan=proposal.plan, made=proposal.made(now, step=step, is_taken=is_taken)),
        _say("plan", f"{why}; {_verdict(proposal, is_taken)}", _numbers(proposal), now),
        *([_say("hint", proposal.hint, {}, now)] if proposal.hint else []),
    ]
    if not is_taken:
        return state, kept
    reason = f"{why}; {proposal.chosen} is predicted to take {proposal.gain:.0%} less"
    state, commands = _restructured(state, proposal.structure, reason, now)
    return state, kept + commands


def _measured_s(state: ControlState) -> float | None:
    return state.pace.median_step_s if state.pace.step_s else None


def _verdict(proposal: Proposal, is_taken: bool) -> str:
    present, best = f"{proposal.present_s:.4g} s", f"{proposal.step_s:.4g} s"
    if is_taken:
        return f"planned: {proposal.chosen}, {best} per step instead of {present}"
    if proposal.is_present:
        return f"the structure stays: {proposal.chosen}, {best} per step as planned"
    return (
        f"the structure stays, at {present} per step: {proposal.chosen} is predicted at {best}, "
        f"which is not {MARGIN:.0%} less, or was left before"
    )


def _numbers(proposal: Proposal) -> dict[str, float]:
    return {
        "present_s": proposal.present_s,
        "predicted_s": proposal.step_s,
        "link_scale": proposal.link_scale,
    }


def _restructured(
    state: ControlState, structure: Structure | None, reason: str, now: float
) -> tuple[ControlState, list[Command]]:
    """A planned view with a new group, whose members and shares are the present ones."""
    options = msgspec.structs.replace(state.options, structure=structure)
    fitted = structure_of(structure, state.members)
    return publish(
        msgspec.structs.replace(state, options=options),
        members=state.members,
        shares=state.shares,
        reason=f"{reason}; {'all in one ring' if fitted is None else fitted}",
        numbers={"members": float(len(state.members))},
        now=now,
        is_new_group=True,
    )


def _say(what: str, reason: str, numbers: dict[str, float], now: float) -> Say:
    return Say(decision=Decision(t=now, what=what, reason=reason, numbers=numbers))
