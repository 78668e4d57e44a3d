# SPDX-License-Identifier: Apache-2.0
"""Teams of several workers in front of parameter servers: in step inside, at their own pace between."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from elastic_jobs import hang, kill, run_with
from test_served import SETUP, assert_sound
from test_teams import PAIRS

from cases import quick_of
from gangline.spec.event import UpdateApplied
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

MODES = [
    "asp",
    "bsp",
    "ssp(1, servers=2)",
    "backup(1)",
    "asp(update=worker, push=4, fetch=2)",
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_sample_of_pairs_counts_once_and_all_end_alike(tmp_path: Path, mode: str) -> None:
    outcome = run_with(tmp_path, SETUP, [], workers=4, structure=PAIRS, sync=parse_sync(mode))
    assert_sound(outcome, SETUP)
    assert {team for one in outcome.of_kind(UpdateApplied) for team in one.teams} == {0, 1}


@pytest.mark.parametrize(
    ("mode", "worker", "where"),
    quick_of(
        product(MODES, [0, 1, 2, 3], ["forward", "exchange", "update", "between"]),
        quick=[("asp", 0, "update")],
    ),
)
def test_a_pair_goes_on_without_a_member(
    tmp_path: Path, mode: str, worker: int, where: str
) -> None:
    """Workers 0 and 2 lead, and worker 0 serves."""
    setup = replace(SETUP, think_s=0.01)
    outcome = run_with(
        tmp_path,
        setup,
        [kill(worker, 4, where)],
        workers=4,
        structure=PAIRS,
        sync=parse_sync(mode),
    )
    assert_sound(outcome, setup, killed=(worker,))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "worker"), list(product(MODES, [0, 1, 2, 3])))
def test_a_member_of_a_pair_hangs_and_comes_back(tmp_path: Path, mode: str, worker: int) -> None:
    setup = replace(SETUP, wait=dict.fromkeys(range(14, 26), f"worker {worker} joined"))
    outcome = run_with(
        tmp_path,
        setup,
        [hang(worker, 4, "forward", for_s=3.0)],
        workers=4,
        structure=PAIRS,
        sync=parse_sync(mode),
    )
    assert_sound(outcome, setup)
