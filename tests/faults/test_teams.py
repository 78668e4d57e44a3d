# SPDX-License-Identifier: Apache-2.0
"""Groups that train at their own pace: every sample once, all alike at the end, whoever dies."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import assert_replays, hang, kill, run_with

from cases import quick_of
from gangline.spec.event import Decision, LeaseReturned, Regrouped, RoundEnded
from gangline.spec.exchange.structure import RING, Structure
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from elastic_jobs import Outcome

SETUP = Setup(samples=200, batch=12, epochs=3, allocation="balanced")
PAIRS = Structure(
    topology=RING,
    leader=0,
    groups=(
        Structure(topology=RING, leader=0, members=(0, 1)),
        Structure(topology=RING, leader=2, members=(2, 3)),
    ),
)


def assert_sound(outcome: Outcome, setup: Setup, *, killed: tuple[int, ...] = ()) -> None:
    codes = [-signal.SIGKILL if w in killed else 0 for w in range(len(outcome.exit_codes))]
    assert outcome.exit_codes == codes, outcome.outputs
    first, *others = [result["state"] for result in outcome.results.values()]
    for other in others:
        assert all(torch.equal(value, other[name]) for name, value in first.items())
    assert_replays(outcome.folder)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)


def rounds(outcome: Outcome, *, is_whole: bool) -> list[RoundEnded]:
    return [one for one in outcome.of_kind(RoundEnded) if one.is_whole == is_whole]


@pytest.mark.parametrize(
    "mode",
    quick_of(
        ["none", "percentage(0.5)", "local(3)", "local(3, strict)", "flexible"],
        quick=["none", "flexible"],
    ),
)
def test_every_sample_is_used_once_and_all_end_alike(tmp_path: Path, mode: str) -> None:
    outcome = run_with(tmp_path, SETUP, [], sync=parse_sync(mode))
    assert_sound(outcome, SETUP)
    whole = rounds(outcome, is_whole=True)
    assert all(one.is_committed for one in whole)
    if mode == "none":
        assert len(outcome.of_kind(RoundEnded)) == SETUP.epochs
    if mode == "local(3, strict)":
        assert len(whole) > SETUP.epochs
    if mode in ("percentage(0.5)", "local(3)", "flexible"):
        assert rounds(outcome, is_whole=False)


@pytest.mark.slow
def test_groups_of_a_structure_are_teams_that_step_together(tmp_path: Path) -> None:
    outcome = run_with(
        tmp_path, SETUP, [], workers=4, structure=PAIRS, sync=parse_sync("percentage(0.25)")
    )
    assert_sound(outcome, SETUP)
    assert {one.team: tuple(one.members) for one in outcome.of_kind(Regrouped)} == {
        0: (0, 1),
        1: (2, 3),
    }


ROUND = "the end of a round"


@pytest.mark.parametrize(
    ("mode", "worker", "what"),
    quick_of(
        product(
            ["percentage(0.5)", "local(3)", "local(3, strict)"],
            [0, 1],
            ["other teams", "samples", ROUND],
        ),
        quick=[
            ("percentage(0.5)", 0, "samples"),
            ("local(3)", 1, ROUND),
            ("local(3, strict)", 1, "other teams"),
        ],
    ),
)
def test_a_team_goes_on_where_a_wait_for_the_others_was_broken_off(
    tmp_path: Path, mode: str, worker: int, what: str
) -> None:
    """Worker 0 leads its team. Where one member waits no longer, the other one may have gone on."""
    setup = replace(SETUP, breaks_off=(worker, what))
    sync = parse_sync(mode)
    outcome = run_with(tmp_path, setup, [], workers=4, structure=PAIRS, sync=sync)
    assert_sound(outcome, setup)
    assert any("nobody is missing" in one.reason for one in outcome.of_kind(Regrouped))


@pytest.mark.parametrize(
    "mode",
    quick_of(["none", "percentage(0.5)", "local(3)", "local(3, strict)"], quick=["local(3)"]),
)
def test_samples_of_a_lost_team_are_used_by_others(tmp_path: Path, mode: str) -> None:
    fault = kill(1, 5, "exchange")
    outcome = run_with(tmp_path, SETUP, [fault], sync=parse_sync(mode))
    assert_sound(outcome, SETUP, killed=(1,))
    assert outcome.of_kind(LeaseReturned)
    assert any("team 1 is lost" in one.reason for one in outcome.of_kind(Decision))


@pytest.mark.parametrize(
    ("where", "worker"), quick_of(product(["exchange", "between"], [0, 1]), quick=[("exchange", 0)])
)
def test_a_team_goes_on_without_a_member(tmp_path: Path, worker: int, where: str) -> None:
    outcome = run_with(
        tmp_path,
        SETUP,
        [kill(worker, 4, where)],
        workers=4,
        structure=PAIRS,
        sync=parse_sync("percentage(0.5)"),
    )
    assert_sound(outcome, SETUP, killed=(worker,))
    assert not outcome.of_kind(LeaseReturned)


@pytest.mark.slow
def test_a_hung_team_is_given_up_and_comes_back(tmp_path: Path) -> None:
    setup = replace(SETUP, wait={30: "slow until measured"})
    outcome = run_with(
        tmp_path, setup, [hang(2, 4, "forward", for_s=4.0)], sync=parse_sync("percentage(0.5)")
    )
    assert_sound(outcome, setup)
    assert any("team 2 is lost" in one.reason for one in outcome.of_kind(Decision))


def test_a_team_that_is_back_too_late_is_told_so(tmp_path: Path) -> None:
    outcome = run_with(tmp_path, SETUP, [hang(2, 4, "forward", for_s=6.0)], sync=parse_sync("none"))
    assert outcome.exit_codes == [0, 0, 1]
    assert "LeftBehindError" in outcome.outputs[2]
    outcome.ledger.check(length=SETUP.samples, epochs=SETUP.epochs)
