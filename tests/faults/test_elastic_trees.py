# SPDX-License-Identifier: Apache-2.0
"""Workers that exchange by a tree lose members and leaders: another speaks, and nothing is lost."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import hang, judge, kill, regroups, run_with

from cases import quick_of
from gangline.spec.event import ViewAdopted
from tree_members import ring, server

if TYPE_CHECKING:
    from gangline.spec.exchange.structure import Structure

RINGS = ring(ring(0, 1), ring(2, 3))
HANG_S = 2.8
"""Longer than the coordinator's patience."""


TOP_SERVER = (
    server(ring(0, 1), server(2, 3)),
    *(0, "exchange", "server at 1(ring(1*), server(2*, 3))"),
)


@pytest.mark.parametrize(
    ("tree", "victim", "place", "after"),
    quick_of(
        [
            (RINGS, 1, "exchange", "ring(ring(0*), ring(2*, 3))"),
            (RINGS, 2, "exchange", "ring(ring(0*, 1), ring(3*))"),
            (RINGS, 2, "backward", "ring(ring(0*, 1), ring(3*))"),
            TOP_SERVER,
        ],
        quick=[TOP_SERVER],
    ),
    ids=["a member", "a leader", "a leader that computes", "the top server"],
)
def test_the_others_go_on_in_what_is_left_of_the_tree(
    tmp_path: Path, tree: Structure, victim: int, place: str, after: str
) -> None:
    setup, faults = Setup(), [kill(victim, 3, place)]
    outcome = run_with(tmp_path, setup, faults, workers=4, structure=tree)
    judge(outcome, setup, faults)
    structures = [event.structure for event in outcome.of_kind(ViewAdopted)]
    assert set(structures) == {str(tree), after}
    assert {event.worker for event in regroups(outcome)} == {0, 1, 2, 3} - {victim}


@pytest.mark.slow
def test_the_rest_goes_on_in_one_ring_when_a_whole_group_is_killed(tmp_path: Path) -> None:
    setup = Setup()
    faults = [kill(2, 3, "exchange"), kill(3, 3, "exchange")]
    outcome = run_with(tmp_path, setup, faults, workers=4, structure=RINGS)
    judge(outcome, setup, faults)
    assert "" in {event.structure for event in outcome.of_kind(ViewAdopted)}


@pytest.mark.slow
def test_several_units_are_exchanged_by_tcp_when_a_leader_is_killed(tmp_path: Path) -> None:
    setup, faults = Setup(loop="wide", samples=24), [kill(0, 3, "backward")]
    outcome = run_with(tmp_path, setup, faults, workers=4, structure=RINGS, transport="wire-tcp")
    judge(outcome, setup, faults)


@pytest.mark.parametrize(
    ("victim", "without"), quick_of([(2, "ring(3*)"), (3, "ring(2*)")], quick=[(2, "ring(3*)")])
)
def test_a_worker_that_hung_gets_its_old_place_back(
    tmp_path: Path, victim: int, without: str
) -> None:
    setup = Setup(epochs=3, wait={10: f"worker {victim} joined"}, think_s=0.03)
    faults = [hang(victim, 3, "exchange", HANG_S)]
    outcome = run_with(tmp_path, setup, faults, workers=4, structure=RINGS)
    judge(outcome, setup, faults)
    structures = [event.structure for event in outcome.of_kind(ViewAdopted)]
    assert set(structures) == {str(RINGS), f"ring(ring(0*, 1), {without})"}
    assert 17 in outcome.steps_of(victim), "it takes part in the last step"


@pytest.mark.parametrize(
    "where", quick_of(["in prepare", "shaking hands"], quick=["shaking hands"])
)
def test_the_others_begin_when_a_leader_is_killed_before_the_first_view(
    tmp_path: Path, where: str
) -> None:
    setup = Setup(dies={2: where})
    outcome = run_with(tmp_path, setup, [], workers=4, structure=RINGS)
    assert outcome.exit_codes == [0, 0, -signal.SIGKILL, 0], outcome.outputs
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    structures = {event.structure for event in outcome.of_kind(ViewAdopted)}
    assert structures == {"ring(ring(0*, 1), ring(3*))"}
