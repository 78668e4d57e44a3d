# SPDX-License-Identifier: Apache-2.0
"""Making the next view: its shares, its number, and the commands that announce it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control.commands import Command, PublishView, Say
from gangline.control.shares.speeds import assumed_costs
from gangline.planning.allocation.policies import AllocationProblem, allocate
from gangline.spec.event import Decision
from gangline.spec.exchange.structure import structure_of
from gangline.spec.view import View

if TYPE_CHECKING:
    from gangline.control.state import ControlState
    from gangline.planning.allocation.bounds import Shares

FEW_WORKERS = 16
"""Up to so many, a decision shows the numbers of every worker."""


def next_number(state: ControlState) -> int:
    """The number of the next view; the first is 0."""
    return 0 if state.view is None else state.view.number + 1


def cut(state: ControlState) -> Shares:
    """The shares that the run's policy gives now, to what is known about the members."""
    if state.options.has_owner:
        owned: Shares = np.zeros(len(state.weights), dtype=np.int64)
        owned[:1] = state.options.global_batch
        return owned
    fixed_s, per_sample_s = assumed_costs(state.speeds, state.weights)
    metrics = state.metrics
    nothing = np.zeros(len(fixed_s))
    problem = AllocationProblem(
        global_batch=state.options.global_batch,
        minimum=state.options.minimum,
        weights=state.weights,
        max_samples=state.max_samples,
        fixed_s=fixed_s,
        per_sample_s=per_sample_s,
        operations_per_s=nothing if metrics is None else metrics.operations_per_s,
        memory_bytes=nothing if metrics is None else metrics.memory_bytes,
        latency_s=nothing if metrics is None else metrics.latency_s,
    )
    # Seeded by the number of the view, so that a draw does not depend on what was drawn before.
    rng = np.random.default_rng((state.options.seed, next_number(state)))
    lacks_metrics = metrics is None and state.options.allocation.startswith("kqv")
    return allocate("equal" if lacks_metrics else state.options.allocation, problem, rng=rng)


def publish(
    state: ControlState,
    *,
    members: tuple[int, ...],
    shares: Shares,
    reason: str,
    numbers: dict[str, float],
    now: float,
    is_new_group: bool = False,
    is_recovery: bool = False,
) -> tuple[ControlState, list[Command]]:
    """The state with a new view, and the commands that make it known."""
    parts = tuple(shares.tolist())
    group = 0 if state.view is None else state.view.group + is_new_group
    view = View(
        number=next_number(state),
        members=members,
        shares=parts,
        group=group,
        reason=reason,
        structure=structure_of(state.options.structure, members),
        whole=state.options.whole,
    )
    if len(members) <= FEW_WORKERS:
        numbers = numbers | {f"share_{w}": float(n) for w, n in zip(members, parts, strict=True)}
    decision = Decision(
        t=now, what="publish_view", reason=reason, numbers={"view": float(view.number)} | numbers
    )
    after = msgspec.structs.replace(state, view=view, shares=shares, steps_in_view=0)
    return after, [Say(decision=decision), PublishView(view=view, is_recovery=is_recovery)]
