# SPDX-License-Identifier: Apache-2.0
"""A plan for the members of a running job, from what was measured of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control.shares.speeds import assumed_costs
from gangline.control.stragglers.oversight import LINK
from gangline.control.structure.links import guessed_pairs, slowed, slowed_by
from gangline.planning.cost.model import predict_step
from gangline.planning.cost.network import resolve
from gangline.planning.cost.treecost import exchange_s
from gangline.planning.planner import PlanOptions, make_plan
from gangline.planning.restricting import restricted
from gangline.planning.structure.candidates import EVERYBODY
from gangline.spec.event import PlanMade
from gangline.spec.exchange.structure import Structure, structure_of
from gangline.spec.outlook import LOCAL_LINK
from gangline.spec.plan import Plan
from gangline.spec.profile import ClusterProfile, Zone

if TYPE_CHECKING:
    from gangline.control.state import ControlState
    from gangline.spec.outlook import Outlook
    from gangline.spec.workload import Workload

_LEAST_S = 1e-9
_MOST_SCALE = 1e4
_MOST_NAMED = 8
MARGIN = 0.1
"""By what part of the step another structure must be faster to be worth it."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that keeps all members, and what the present structure is predicted to take."""

    plan: Plan
    structure: Structure | None
    """Of the plan, in worker numbers; None: all in one ring."""
    present: Structure | None
    step_s: float
    present_s: float
    hint: str
    """Which nodes the step would be faster without; empty: none."""
    link_scale: float
    """How many times as slow as was known the links are taken to be, by what exchanges took."""
    num_left_out: int
    """Workers of the job that were put out, and are not planned for."""

    @property
    def chosen(self) -> str:
        """The plan's structure and nodes: not all, where some are left out."""
        if not self.num_left_out:
            return self.plan.chosen
        count = len(self.plan.nodes)
        part = f"{count} of {count + self.num_left_out} nodes"
        return self.plan.chosen.replace(EVERYBODY, part)

    @property
    def is_present(self) -> bool:
        """Whether the plan is what the members do already."""
        return self.structure == self.present

    @property
    def gain(self) -> float:
        """By what part of the step the plan is faster than the present structure."""
        return 1 - self.step_s / self.present_s if self.present_s > 0 else 0.0

    def made(self, now: float, *, step: int, is_taken: bool) -> PlanMade:
        """The event that tells of it."""
        plan, prediction = self.plan, self.plan.prediction
        structure = self.structure if is_taken else self.present
        return PlanMade(
            t=now,
            step=step,
            chosen=self.chosen,
            structure="" if structure is None else str(structure),
            bound=plan.kind,
            nodes=list(plan.nodes),
            shares=list(plan.shares),
            compute_s=prediction.compute_s,
            exchange_s=prediction.exchange_s,
            hidden_s=prediction.hidden_s,
            other_s=prediction.other_s,
            step_s=self.step_s if is_taken else self.present_s,
            reasons=list(plan.reasons),
            hint=self.hint,
        )


def propose(state: ControlState) -> Proposal:
    """The plan for the present members. Its predictions are for the shares that they have now."""
    outlook, view = state.options.outlook, state.view
    assert outlook is not None
    assert view is not None
    workload = _measured_workload(state, outlook.workload)
    must_fit = not outlook.knows_links or state.pace.has_drifted
    profile = slowed_by(_profile(state, outlook), _link_troubles(state, outlook))
    scale = _link_scale(state, profile, workload) if must_fit else 1.0
    profile = slowed(profile, scale)
    options = PlanOptions(structure="auto" if outlook.knows_links else "flat-ring", everybody=True)
    plan = make_plan(profile, workload, rng=np.random.default_rng(0), options=options)
    worker_of = {outlook.node_of(worker).name: (worker,) for worker in state.members}
    planned = {name: worker_of[name] for name in plan.nodes}
    structure = structure_of(Structure.from_plan(plan.root, planned), state.members)
    if not outlook.knows_links:
        reason = "nothing says that links differ: one ring of all, as fast as exchanges were so far"
        plan = msgspec.structs.replace(plan, reasons=(*plan.reasons, reason))
    left_out = [outlook.node_of(spare.worker).name for spare in state.oversight.spares]
    if left_out:
        reason = f"left out, because a step is shorter without: {', '.join(left_out[:_MOST_NAMED])}"
        plan = msgspec.structs.replace(plan, reasons=(*plan.reasons, reason))
    return Proposal(
        plan=plan,
        structure=structure,
        present=view.structure,
        step_s=_step_s(state, profile, workload, structure),
        present_s=_step_s(state, profile, workload, view.structure),
        hint=_hint(profile, workload, plan) if outlook.knows_links else "",
        link_scale=scale,
        num_left_out=len(left_out),
    )


def _hint(profile: ClusterProfile, workload: Workload, plan: Plan) -> str:
    """Which nodes cost more than they give, where that is much."""
    best = make_plan(profile, workload, rng=np.random.default_rng(0))
    step_s, with_all_s = best.prediction.step_s, plan.prediction.step_s
    left_out = [node for node in plan.nodes if node not in set(best.nodes)]
    if not left_out or step_s > (1 - MARGIN) * with_all_s:
        return ""
    shown = ", ".join(left_out[:_MOST_NAMED])
    more = f" and {len(left_out) - _MOST_NAMED} more" if len(left_out) > _MOST_NAMED else ""
    return (
        f"without {shown}{more} the step is predicted at {step_s:.3g} s instead of "
        f"{with_all_s:.3g} s"
    )


def _measured_workload(state: ControlState, asked: Workload) -> Workload:
    """The workload with what a step was found to take besides computing and exchanging."""
    pace = state.pace
    if not pace.step_s:
        return asked
    besides_s = pace.median_step_s - pace.median_exchange_s - _compute_s(state)
    return msgspec.structs.replace(asked, other_s=max(0.0, besides_s))


def _compute_s(state: ControlState) -> float:
    """The slowest member's time for its present share."""
    fixed_s, per_sample_s = assumed_costs(state.speeds, state.weights)
    return float((fixed_s + per_sample_s * state.shares).max())


def _profile(state: ControlState, outlook: Outlook) -> ClusterProfile:
    """The members with the speeds that were measured, and the links between them."""
    fixed_s, per_sample_s = assumed_costs(state.speeds, state.weights)
    nodes = tuple(
        msgspec.structs.replace(
            outlook.node_of(worker),
            fixed_s=max(0.0, float(fixed_s[rank])),
            per_sample_s=max(_LEAST_S, float(per_sample_s[rank])),
        )
        for rank, worker in enumerate(state.members)
    )
    found = restricted(outlook.profile, nodes)
    if found.zones:
        return found
    if found.pairs:
        return msgspec.structs.replace(found, pairs=found.pairs + guessed_pairs(found))
    return msgspec.structs.replace(found, zones=(Zone(place="", link=LOCAL_LINK),))


def _link_troubles(state: ControlState, outlook: Outlook) -> dict[str, float]:
    """How many times as long as the others' the hops of members take that got slower than usual."""
    hop_s, is_slow = state.oversight.hop_s, state.oversight.in_trouble[LINK]
    others = hop_s[~is_slow & np.isfinite(hop_s)]
    if not outlook.knows_links or not is_slow.any() or not len(others):
        return {}
    usual_s = float(np.median(others))
    return {
        outlook.node_of(state.members[rank]).name: max(1.0, float(hop_s[rank]) / usual_s)
        for rank in np.flatnonzero(is_slow & np.isfinite(hop_s)).tolist()
    }


def _link_scale(state: ControlState, profile: ClusterProfile, workload: Workload) -> float:
    """How many times as slow links must be for the present exchange to take what it was found to.

    The visible part is max(exchange/k, exchange − overlap·compute): so the exchange is the lesser of
    what either would need to be.
    """
    pace, view = state.pace, state.view
    if not pace.exchange_s or view is None:
        return 1.0
    modelled_s = _exchange_s(state, profile, workload, view.structure)
    visible_s = pace.median_exchange_s
    whole_s = min(visible_s * workload.num_units, visible_s + workload.overlap * _compute_s(state))
    if modelled_s <= 0 or whole_s <= 0:
        return 1.0
    return min(max(whole_s / modelled_s, 1 / _MOST_SCALE), _MOST_SCALE)


def _exchange_s(
    state: ControlState, profile: ClusterProfile, workload: Workload, tree: Structure | None
) -> float:
    rank_of = {worker: rank for rank, worker in enumerate(state.members)}
    whole = Structure.flat(state.members) if tree is None else tree
    return exchange_s(resolve(profile, workload), workload, whole.relabelled(rank_of.__getitem__))


def _step_s(
    state: ControlState, profile: ClusterProfile, workload: Workload, tree: Structure | None
) -> float:
    return predict_step(
        _compute_s(state),
        _exchange_s(state, profile, workload, tree),
        overlap=workload.overlap,
        num_units=workload.num_units,
        other_s=workload.other_s,
    ).step_s
