# SPDX-License-Identifier: Apache-2.0
"""When the members of a running job get another structure, and when they do not."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from gangline.control import (
    ControlOptions,
    ControlState,
    KeepPlan,
    PublishView,
    Say,
    StepMeasured,
    StructureAsked,
    WorkersJoined,
    WorkersLost,
    decide,
)
from gangline.control.stragglers.oversight import LINK
from gangline.control.structure.links import slowed, slowed_by
from gangline.control.structure.pace import PATIENCE, WINDOW, Pace, seen
from gangline.control.structure.structures import OBSERVATIONS
from gangline.planning.cost.network import resolve
from gangline.planning.cost.treecost import exchange_s
from gangline.planning.planner import PlanOptions, make_plan
from gangline.spec.errors import UsageError
from gangline.spec.exchange.structure import Structure
from gangline.spec.outlook import Outlook
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, PairLink, Zone
from gangline.spec.workload import Workload
from tree_members import ring

FAST = Link(latency_s=20e-6, bytes_per_s=5e9)
SLOW = Link(latency_s=20e-3, bytes_per_s=5e6)
RINGS = ring(ring(0, 1), ring(2, 3))


def outlook(*zones: Zone, gradient_bytes: float = 4e6) -> Outlook:
    places = ("a", "b", "a", "b") if zones else ("",) * 4
    nodes = tuple(
        NodeProfile(name=f"n{i}", per_sample_s=1.0, place=place) for i, place in enumerate(places)
    )
    return Outlook(
        workload=Workload(global_batch=64, gradient_bytes=gradient_bytes),
        profile=ClusterProfile(nodes=nodes, zones=zones),
    )


def two_sites(between: Link = SLOW, inside: Link = FAST) -> Outlook:
    zones = [Zone(place="", link=between)]
    zones += [Zone(place=place, link=inside) for place in "ab"]
    return outlook(*zones)


class Job:
    """A job of four like members that never change; what was decided, by kind."""

    def __init__(self, **options: Any) -> None:
        self.state = ControlState.begin(
            ControlOptions(global_batch=64, allocation="equal", **options)
        )
        self.step = 0
        self.plans: list[KeepPlan] = []
        self.views: list[PublishView] = []
        self.said: list[str] = []
        self.tell(WorkersJoined(workers=(0, 1, 2, 3)))

    def tell(self, event: Any) -> None:
        self.state, commands = decide(self.state, event, float(self.step))
        for command in commands:
            match command:
                case KeepPlan():
                    self.plans.append(command)
                case PublishView():
                    self.views.append(command)
                case Say():
                    self.said.append(command.decision.reason)

    def train(self, steps: int, *, step_s: float, exchange_s: float = 0.01) -> None:
        """Members compute for 10 ms, and a step takes as long as it is said to."""
        for _ in range(steps):
            view = self.state.view
            assert view is not None
            self.tell(
                StepMeasured(
                    step=self.step,
                    view=view.number,
                    workers=view.members,
                    samples=np.array(view.shares),
                    compute_s=np.full(len(view.members), 0.01),
                    exchange_s=exchange_s,
                    step_s=step_s,
                )
            )
            self.step += 1

    @property
    def structure(self) -> Structure | None:
        assert self.state.view is not None
        return self.state.view.structure


def sites_of(structure: Structure | None) -> list[set[int]]:
    assert structure is not None
    return [set(group.members) for group in structure.groups]


# --- what somebody asks for ---------------------------------------------------------------------------


def test_a_planned_view_with_a_new_group_is_published_when_a_structure_is_asked_for() -> None:
    job = Job()
    job.tell(StructureAsked(structure=RINGS, reason="because"))
    published = job.views[-1]
    assert published.view.structure == RINGS
    assert (published.view.group, published.is_recovery) == (1, False)
    assert published.view.shares == (16, 16, 16, 16)
    assert job.said[-1] == "because; ring(ring(0*, 1), ring(2*, 3))"
    job.tell(WorkersLost(workers=(2,), reason="gone"))
    assert job.structure == ring(ring(0, 1), ring(3))
    job.tell(StructureAsked(structure=None, reason="because"))
    assert job.structure is None
    assert job.said[-1] == "because; all in one ring"


def test_no_view_is_published_when_the_structure_is_so_already() -> None:
    job = Job(structure=RINGS)
    job.tell(StructureAsked(structure=RINGS, reason="because"))
    assert len(job.views) == 1
    assert job.said[-1] == "because: it is so already"


def test_the_message_says_so_when_nobody_has_joined() -> None:
    state = ControlState.begin(ControlOptions(global_batch=8))
    with pytest.raises(UsageError, match="nobody has joined yet"):
        decide(state, StructureAsked(structure=None, reason=""), 0.0)


# --- what is planned ----------------------------------------------------------------------------------


def test_the_ring_of_all_stays_when_nothing_says_that_links_differ() -> None:
    job = Job(outlook=outlook())
    job.train(3 * WINDOW, step_s=0.025, exchange_s=0.012)
    (plan,) = job.plans
    assert len(job.views) == 1
    assert plan.made.structure == ""
    assert plan.made.chosen == "flat ring, all nodes"
    assert plan.made.step_s == pytest.approx(0.025, rel=0.01), "as fast as it was so far"
    assert plan.plan.nodes == ("n0", "n1", "n2", "n3")
    assert any("nothing says that links differ" in reason for reason in plan.made.reasons)


def test_sites_become_groups_when_the_link_between_them_is_slow() -> None:
    job = Job(outlook=two_sites())
    job.train(3 * OBSERVATIONS, step_s=2.0, exchange_s=1.9)
    assert sites_of(job.structure) == [{0, 2}, {1, 3}]
    (plan,) = job.plans
    assert plan.made.structure == str(job.structure)
    assert job.views[-1].view.group == 1
    assert f"less; {job.structure}" in job.views[-1].view.reason
    assert plan.made.hint.startswith("without "), "10 ms of computing are not worth that link"
    assert plan.made.hint in job.said


def test_the_structure_stays_when_another_one_is_hardly_faster() -> None:
    job = Job(outlook=two_sites(between=Link(latency_s=21e-6, bytes_per_s=4.9e9)))
    job.train(2 * WINDOW, step_s=0.02)
    assert len(job.plans) == 1
    assert job.structure is None


def test_it_is_planned_anew_when_the_members_change() -> None:
    job = Job(outlook=two_sites())
    job.train(20, step_s=2.0)
    job.tell(WorkersLost(workers=(3,), reason="gone"))
    job.train(20, step_s=2.0)
    assert len(job.plans) == 2
    assert "the members changed" in " ".join(job.said)


@pytest.mark.parametrize("gone", [(3,), (1, 2, 3)])
def test_the_prediction_is_of_the_members_that_are_left(gone: tuple[int, ...]) -> None:
    job = Job(outlook=outlook())
    job.train(2 * WINDOW, step_s=0.0785, exchange_s=0.012)
    job.tell(WorkersLost(workers=gone, reason="too slow"))
    job.train(2 * WINDOW, step_s=0.0517, exchange_s=0.012 if len(gone) == 1 else 0.0)
    before, after = job.plans
    assert before.made.step_s == pytest.approx(0.0785, rel=0.01)
    assert after.made.step_s == pytest.approx(0.0517, rel=0.01)
    assert len(after.plan.nodes) == 4 - len(gone)
    assert job.said[-1].endswith("0.0517 s per step as planned")


def test_a_job_of_one_is_not_planned() -> None:
    job = Job(outlook=outlook())
    job.tell(WorkersLost(workers=(1, 2, 3), reason="gone"))
    job.train(2 * WINDOW, step_s=0.05)
    assert job.plans == []


def test_somebody_may_have_it_planned_or_keep_it_from_being_planned() -> None:
    job = Job()
    job.train(20, step_s=2.0, exchange_s=1.9)
    assert job.plans == []
    job.tell(StructureAsked(structure=None, reason="because", outlook=two_sites()))
    assert sites_of(job.structure) == [{0, 2}, {1, 3}], "enough is known: at once"
    job.tell(StructureAsked(structure=None, reason="because"))
    job.train(20, step_s=2.0, exchange_s=1.9)
    assert job.structure is None
    assert len(job.plans) == 1


def test_the_structure_stays_when_no_plan_can_be_made() -> None:
    known = two_sites()
    nowhere = Zone(place="c", link=FAST)
    broken = msgspec.structs.replace(known.profile, zones=(*known.profile.zones, nowhere))
    tiny = tuple(msgspec.structs.replace(node, memory_bytes=1.0) for node in broken.nodes)
    profile = msgspec.structs.replace(broken, nodes=tiny)
    job = Job(outlook=msgspec.structs.replace(known, profile=profile))
    job.train(10 * WINDOW, step_s=2.0)
    assert job.plans == []
    assert job.structure is None
    failed = [
        text for text in job.said if "the structure stays: no node can hold the model" in text
    ]
    assert len(failed) == 1


def test_it_is_said_when_too_little_is_known_to_plan() -> None:
    job = Job()
    job.tell(StructureAsked(structure=None, reason="because", outlook=two_sites()))
    assert job.said[-1] == "because: it is planned when every member was measured 8 times"
    job.train(20, step_s=2.0)
    assert len(job.plans) == 1


# --- drift --------------------------------------------------------------------------------------------


def test_a_plan_has_drifted_only_when_window_after_window_is_off() -> None:
    pace = Pace(expected_s=1.0)
    for step in range(WINDOW * PATIENCE - 1):
        pace = seen(pace, members=(0, 1), exchange_s=0.1, step_s=1.6)
        assert not pace.has_drifted, step
    assert seen(pace, members=(0, 1), exchange_s=0.1, step_s=1.6).has_drifted
    for step_s in (1.6, 1.6, 1.4, 1.6, 1.6):
        for _ in range(WINDOW):
            pace = seen(pace, members=(0, 1), exchange_s=0.1, step_s=step_s)
        pace = pace if pace.num_off < PATIENCE else Pace(expected_s=1.0)
    assert not pace.has_drifted


def test_steps_that_are_too_fast_are_drift_too() -> None:
    pace = Pace(expected_s=1.0)
    for _ in range(WINDOW * PATIENCE):
        pace = seen(pace, members=(0, 1), exchange_s=0.1, step_s=0.5)
    assert pace.has_drifted


def test_what_is_measured_is_expected_after_a_drift() -> None:
    job = Job(outlook=outlook())
    job.train(2 * WINDOW, step_s=0.025)
    job.train(20 * WINDOW, step_s=0.075, exchange_s=0.06)
    assert len(job.plans) == 2, "found out once"
    assert job.state.pace.expected_s == pytest.approx(0.075)
    assert "3.00 times what was expected" in " ".join(job.said)


def test_a_structure_that_drifted_is_not_taken_again() -> None:
    job = Job(outlook=two_sites())
    job.train(20, step_s=2.0, exchange_s=1.9)
    planned = job.structure
    assert planned is not None
    job = Job(outlook=two_sites())
    pace = msgspec.structs.replace(job.state.pace, left=(planned,))
    job.state = msgspec.structs.replace(job.state, pace=pace)
    job.train(20, step_s=2.0, exchange_s=1.9)
    assert len(job.plans) == 1
    assert job.structure is None
    assert any("or was left before" in text for text in job.said)


def test_a_worker_whose_hops_got_slow_is_taken_out_of_the_ring_when_the_plan_drifts() -> None:
    known = outlook(Zone(place="", link=Link(latency_s=1e-3, bytes_per_s=1e8)))
    job = Job(outlook=known)
    job.train(WINDOW, step_s=0.16, exchange_s=0.12)
    job.tell(StructureAsked(structure=None, reason="because", outlook=known))
    before = job.structure
    slow = np.array([False, False, False, True])
    oversight = msgspec.structs.replace(
        job.state.oversight,
        in_trouble={**job.state.oversight.in_trouble, LINK: slow},
        hop_s=np.array([0.01, 0.01, 0.01, 0.3]),
    )
    job.state = msgspec.structs.replace(job.state, oversight=oversight)
    job.train((PATIENCE + 1) * WINDOW, step_s=3.0, exchange_s=2.9)
    assert job.structure is not None
    assert job.structure != before
    alone = [group for group in job.structure.groups if group.members == (3,)]
    assert alone, job.structure


def test_links_are_slowed_for_some_nodes_alone() -> None:
    known = two_sites().profile
    pair = PairLink(source="n0", target="n1", there=SLOW, back=FAST)
    profile = slowed_by(msgspec.structs.replace(known, pairs=(pair,)), {"n1": 10.0})
    assert [node.access is None for node in profile.nodes] == [True, False, True, True]
    access = profile.nodes[1].access
    assert access is not None
    assert access.bytes_per_s == FAST.bytes_per_s / 10
    assert profile.pairs[0].there.latency_s == SLOW.latency_s * 10
    assert profile.pairs[0].back is not None
    assert profile.pairs[0].back.bytes_per_s == FAST.bytes_per_s / 10
    assert slowed(profile, 2.0).zones[0].link.latency_s == 2 * SLOW.latency_s


# --- what a given tree costs --------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["by-groups", "flat-ring", "flat-server"])
@pytest.mark.parametrize("gradient_bytes", [1e4, 4e6, 1e8])
def test_a_plans_own_tree_costs_what_the_plan_says(structure: str, gradient_bytes: float) -> None:
    # A server behind unlike links is where the plan reckons with the worst of them for all.
    known = two_sites() if structure != "flat-server" else two_sites(between=FAST)
    workload = Workload(global_batch=64, gradient_bytes=gradient_bytes)
    options = PlanOptions(structure=structure, everybody=True)
    plan = make_plan(known.profile, workload, rng=np.random.default_rng(0), options=options)
    tree = Structure.from_plan(plan.root, {f"n{i}": (i,) for i in range(4)})
    cost_s = exchange_s(resolve(known.profile, workload), workload, tree)
    assert cost_s == pytest.approx(plan.prediction.exchange_s, rel=0.02)


def test_all_nodes_are_kept_when_everybody_shall_take_part() -> None:
    lazy = NodeProfile(name="lazy", per_sample_s=50.0)
    nodes = (*(NodeProfile(name=f"n{i}", per_sample_s=1e-3) for i in range(3)), lazy)
    profile = ClusterProfile(nodes=nodes, zones=(Zone(place="", link=FAST),))
    workload = Workload(global_batch=64, gradient_bytes=1e6)
    free = make_plan(profile, workload, rng=np.random.default_rng(0))
    kept = make_plan(
        profile, workload, rng=np.random.default_rng(0), options=PlanOptions(everybody=True)
    )
    assert "lazy" not in free.nodes
    assert dict(zip(kept.nodes, kept.shares, strict=True))["lazy"] == 1
    assert kept.global_batch == 64
