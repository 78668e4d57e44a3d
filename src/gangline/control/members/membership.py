# SPDX-License-Identifier: Apache-2.0
"""Who takes part: what happens to the view when workers join, leave, and are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control.shares.speeds import joined, selected, unknown_speeds
from gangline.control.views import cut, publish
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from gangline.control.commands import Command
    from gangline.control.inputs import PartChanged, WorkersJoined, WorkersLeft, WorkersLost
    from gangline.control.state import ControlState

NEWCOMER_SPEED = 0.5
"""Who joins a running job is taken for so much of a usual member, until it is measured: too little
of a fast machine is lost for a few steps only, but everybody would wait for a slow one."""


def join(
    state: ControlState, event: WorkersJoined, now: float
) -> tuple[ControlState, list[Command]]:
    """Gives the newcomers the last ranks and a share each."""
    _check(state, event)
    count = len(event.workers)
    ceilings = event.max_samples or (state.options.global_batch,) * count
    is_late = bool((state.speeds.observed > 0).any()) and state.options.allocation != "fixed"
    weights = np.array(event.speeds or (NEWCOMER_SPEED if is_late else 1.0,) * count)
    weights = weights / np.maximum(state.oversight.shown_by(event.workers), 1.0)
    wider = msgspec.structs.replace(
        state,
        max_samples=np.concatenate((state.max_samples, np.array(ceilings, dtype=np.int64))),
        weights=np.concatenate((state.weights, weights)),
        speeds=joined(state.speeds, unknown_speeds(count)),
        oversight=state.oversight.joined(event.workers),
        metrics=None,
        measurements_behind_cut=0,
    )
    members = state.members + event.workers
    who = f"worker {event.workers[0]}" if count == 1 else f"{count} workers"
    basis = "slow until measured" if is_late else "alike"
    basis = basis if event.speeds is None else "as fast as given"
    return publish(
        wider,
        members=members,
        shares=cut(wider),
        reason=f"{who} joined, taken to be {basis}; {len(members)} member{'s' * (len(members) != 1)}",
        numbers={"joined": float(count), "members": float(len(members))},
        now=now,
        is_new_group=True,
    )


def lose(state: ControlState, event: WorkersLost, now: float) -> tuple[ControlState, list[Command]]:
    """A view of those that are left, in their order; their batch is cut among them."""
    members, fewer = without(state, event.workers)
    if not members:
        return _fall_back(state, fewer, event, now)
    return publish(
        fewer,
        members=members,
        shares=cut(fewer),
        reason=f"{event.reason}; {len(members)} of {len(state.members)} members go on",
        numbers={"lost": float(len(state.members) - len(members)), "members": float(len(members))},
        now=now,
        is_new_group=True,
        is_recovery=True,
    )


def _fall_back(
    before: ControlState, nobody: ControlState, event: WorkersLost, now: float
) -> tuple[ControlState, list[Command]]:
    """No member is left: the spares, who have the state of when they were put out, go on from there."""
    spares = [one for one in nobody.oversight.spares if one.worker not in event.workers]
    workers, count = tuple(one.worker for one in spares), len(spares)
    if not spares:
        return before, []
    state = msgspec.structs.replace(
        nobody,
        max_samples=np.array([one.max_samples for one in spares], dtype=np.int64),
        weights=1 / np.maximum(nobody.oversight.shown_by(workers), 1.0),
        speeds=unknown_speeds(count),
        oversight=nobody.oversight.joined(workers),
    )
    return publish(
        state,
        members=workers,
        shares=cut(state),
        reason=f"{event.reason}; no member is left: {count} spares go on from where they were put out",
        numbers={"lost": float(len(event.workers)), "members": float(count)},
        now=now,
        is_new_group=True,
        is_recovery=True,
    )


def leave(
    state: ControlState, event: WorkersLeft, now: float
) -> tuple[ControlState, list[Command]]:
    """A view of those that stay; all members, also those that go, switch to it at an agreed step."""
    members, fewer = without(state, event.workers)
    num_left = len(state.members) - len(members)
    if not members or num_left == 0:
        return state, []
    who = f"worker {event.workers[0]}" if num_left == 1 else f"{num_left} workers"
    return publish(
        fewer,
        members=members,
        shares=cut(fewer),
        reason=f"{who} left; {len(members)} of {len(state.members)} members go on",
        numbers={"left": float(num_left), "members": float(len(members))},
        now=now,
        is_new_group=True,
    )


def change_part(
    state: ControlState, event: PartChanged, now: float
) -> tuple[ControlState, list[Command]]:
    """The same members with another part of the job's batches, cut among them as before."""
    options = msgspec.structs.replace(
        state.options, global_batch=event.global_batch, whole=event.whole
    )
    changed = msgspec.structs.replace(state, options=options)
    return publish(
        changed,
        members=state.members,
        shares=cut(changed),
        reason=event.reason,
        numbers={"team": float(event.whole.team), "batch": float(event.global_batch)},
        now=now,
    )


def without(state: ControlState, workers: tuple[int, ...]) -> tuple[tuple[int, ...], ControlState]:
    """The members but these, and what is known about them."""
    gone = set(workers)
    kept = np.array([i for i, worker in enumerate(state.members) if worker not in gone], dtype=int)
    fewer = msgspec.structs.replace(
        state,
        max_samples=state.max_samples[kept],
        weights=state.weights[kept],
        speeds=selected(state.speeds, kept),
        oversight=state.oversight.selected(kept),
        metrics=None,
        measurements_behind_cut=0,
    )
    return tuple(state.members[i] for i in kept), fewer


def _check(state: ControlState, event: WorkersJoined) -> None:
    count = len(event.workers)
    if count == 0 or len(set(event.workers)) != count:
        raise UsageError(f"workers join once each, at least one at a time: {event.workers}")
    twice = sorted(set(state.members) & set(event.workers))
    if twice:
        raise UsageError(f"already members of view {state.view and state.view.number}: {twice}")
    for name, values in (("speeds", event.speeds), ("max_samples", event.max_samples)):
        if values is not None and (len(values) != count or min(values) <= 0):
            raise UsageError(f"{count} workers need {count} {name}, all above 0; got {values}")
