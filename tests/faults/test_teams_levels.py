# SPDX-License-Identifier: Apache-2.0
"""Teams in sites, merged often inside and rarely across: every sample once, whoever dies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import kill, run_with
from test_teams import assert_sound

from cases import quick_of
from gangline.spec.event import RoundEnded
from gangline.spec.exchange.structure import RING, Structure
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from gangline.spec.faults import Fault

SETUP = Setup(samples=480, batch=24, epochs=3, allocation="balanced")
SITES = Structure(
    topology=RING,
    leader=0,
    groups=tuple(
        Structure(
            topology=RING,
            leader=first,
            groups=tuple(
                Structure(topology=RING, leader=worker, members=(worker, worker + 1))
                for worker in (first, first + 2)
            ),
        )
        for first in (0, 4)
    ),
)
MODE = "percentage(0.5)/percentage(0.1)"
SITE_DIES = [kill(worker, 8, "exchange") for worker in (4, 5, 6, 7)]


@pytest.mark.parametrize("mode", quick_of([MODE, "flexible/none", "none/flexible"], quick=[MODE]))
def test_sites_are_merged_inside_and_across(tmp_path: Path, mode: str) -> None:
    outcome = run_with(tmp_path, SETUP, [], workers=8, structure=SITES, sync=parse_sync(mode))
    assert_sound(outcome, SETUP)
    beside = [one for one in outcome.of_kind(RoundEnded) if not one.is_whole]
    lower, higher = mode.split("/")
    assert any(not one.is_all for one in beside) == (lower != "none")
    assert any(one.is_all for one in beside) == (higher != "none")
    assert all(len(one.offsets) == (4 if one.is_all else 2) for one in beside if one.is_committed)


@pytest.mark.parametrize(
    "faults",
    quick_of(
        [
            [kill(2, 9, "exchange"), kill(3, 9, "exchange")],
            [kill(0, 9, "between"), kill(1, 9, "between")],
            SITE_DIES,
        ],
        quick=[SITE_DIES],
    ),
    ids=["a team", "the first team", "a site"],
)
def test_every_sample_is_used_once_though_teams_die(tmp_path: Path, faults: list[Fault]) -> None:
    outcome = run_with(tmp_path, SETUP, faults, workers=8, structure=SITES, sync=parse_sync(MODE))
    assert_sound(outcome, SETUP, killed=tuple(fault.worker for fault in faults))
