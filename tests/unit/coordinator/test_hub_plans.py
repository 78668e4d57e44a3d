# SPDX-License-Identifier: Apache-2.0
"""What the coordinator does about structures: wishes wait, plans are kept, nothing is forgotten."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parent))

from test_hub import Room

from gangline.coordinator.outbox import Outbox
from gangline.coordinator.outputs import KeepPlan
from gangline.coordinator.server.journal import FileJournal
from gangline.eventlog import EventWriter, log_path, read_run
from gangline.protocol.messages import Measured, Ready
from gangline.protocol.status import ReplanRequest
from gangline.spec.errors import UsageError
from gangline.spec.event import PlanMade
from gangline.spec.exchange.compression import Compression
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, Zone
from tree_members import ring

if TYPE_CHECKING:
    from gangline.spec.exchange.structure import Structure

RINGS = ring(ring(0, 1), ring(2, 3))


class PlanRoom(Room):
    """Four founders that say what they exchange."""

    def __init__(self, **options: object) -> None:
        super().__init__(expected=4, **options)

    def begin(self) -> None:
        for worker in range(4):
            self.hello(worker)
        for worker in range(4):
            self.ready(worker)

    def ready(self, worker: int) -> None:
        self.say(
            worker,
            Ready(
                global_batch=16,
                minimum=1,
                allocation="equal",
                shares=None,
                max_samples=None,
                seed=5,
                gradient_bytes=4_000_000,
            ),
        )

    def train(self, steps: range) -> None:
        for step in steps:
            view = self.view
            for worker in view.members:
                report = Measured(
                    step=step,
                    view=view.number,
                    samples=view.shares[0],
                    compute_s=0.01,
                    exchange_s=1.0,
                    other_s=0.001,
                )
                self.say(worker, report)

    def ask(self, structure: Structure | None = None, *, is_auto: bool = False) -> None:
        request = ReplanRequest(structure=structure, is_auto=is_auto)
        self.deliver(self.hub.ask_structure(request))


def two_sites() -> ClusterProfile:
    slow = Link(latency_s=0.02, bytes_per_s=5e6)
    fast = Link(latency_s=2e-5, bytes_per_s=5e9)
    return ClusterProfile(
        nodes=tuple(
            NodeProfile(name=f"n{i}", per_sample_s=1.0, place="ab"[i % 2]) for i in range(4)
        ),
        zones=(
            Zone(place="", link=slow),
            Zone(place="a", link=fast),
            Zone(place="b", link=fast),
        ),
    )


def test_a_wish_waits_until_the_group_has_begun_to_train() -> None:
    room = PlanRoom()
    room.begin()
    room.ask(RINGS)
    room.tick(0.1)
    assert room.view.structure is None
    room.train(range(1))
    room.tick(0.1)
    assert room.view.structure == RINGS
    assert room.view.group == 1


def test_a_restart_goes_on_with_what_was_asked_for(tmp_path: Path) -> None:
    room = PlanRoom(journal=FileJournal(tmp_path / "journal.jsonl"))
    room.begin()
    room.train(range(1))
    room.ask(RINGS)
    room.options["journal"] = FileJournal(tmp_path / "journal.jsonl")
    room.start()
    assert room.view.structure == RINGS
    room.hello(0)
    room.train(range(1, 2))
    room.ask(None)
    assert room.view.structure is None


def test_a_plan_is_made_kept_and_carried_out(tmp_path: Path) -> None:
    outbox = Outbox((), 0.0)
    room = PlanRoom(profile=two_sites(), plans=outbox)
    path = log_path(tmp_path, "coordinator")
    with EventWriter(path, run="r", source="coordinator") as events:
        room.hub.mind._events = events
        room.begin()
        room.train(range(20))
    assert room.view.structure is not None
    assert [set(group.members) for group in room.view.structure.groups] == [{0, 2}, {1, 3}]
    (made,) = [event for event in read_run(tmp_path, notes=[]) if isinstance(event, PlanMade)]
    assert made.structure == str(room.view.structure)
    (kept,) = outbox.take()
    assert isinstance(kept, KeepPlan)
    assert set(kept.plan.nodes) == {"n0", "n1", "n2", "n3"}


def test_it_is_planned_from_the_hosts_when_somebody_asks_and_nothing_is_known() -> None:
    room = PlanRoom()
    room.begin()
    room.train(range(20))
    room.ask(is_auto=True)
    assert room.view.structure is None, "all are on one host"
    assert "every member" not in room.hub.status().decisions[-1]
    assert "the structure stays: flat ring" in room.hub.status().decisions[-1]


def test_it_is_planned_from_a_profile_that_was_measured_meanwhile() -> None:
    room = PlanRoom()
    room.begin()
    room.train(range(20))
    room.deliver(room.hub.ask_structure(ReplanRequest(is_auto=True, profile=two_sites())))
    assert room.view.structure is not None
    assert [set(group.members) for group in room.view.structure.groups] == [{0, 2}, {1, 3}]


def test_a_structure_that_compresses_is_not_planned_away() -> None:
    room = PlanRoom()
    room.begin()
    room.train(range(1))
    room.ask(RINGS.compressed("top", Compression.parse("8-bit")))
    room.train(range(1, 2))
    with pytest.raises(UsageError, match=r"ring\[8-bit\].* compresses what it sends"):
        room.ask(is_auto=True)
    room.ask(None)
    assert room.view.structure is None


def test_nobody_can_ask_before_the_job_has_begun() -> None:
    with pytest.raises(UsageError, match="the job has not begun"):
        PlanRoom().ask(None)


def test_nobody_can_ask_where_the_transport_makes_no_new_groups() -> None:
    room = PlanRoom()
    for worker in range(4):
        room.hello(worker, is_elastic=False)
    for worker in range(4):
        room.ready(worker)
    with pytest.raises(UsageError, match="nobody can exchange in another structure in this job"):
        room.ask(None)
