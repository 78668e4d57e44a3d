# SPDX-License-Identifier: Apache-2.0
"""Parameters that are pulled during the next forward pass, in jobs of real processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from elastic_jobs import kill, run_with
from test_served import SETUP as LONG
from test_served import assert_sound
from test_served_exact import MAKERS, SETUP, Replay
from test_served_exact import assert_replayed as assert_same
from test_served_loops import assert_replayed

from cases import quick_of
from gangline.spec.event import UpdateApplied
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

LOOP = "served_in_forward"
MAKERS[LOOP] = MAKERS["served_adam"]
TABLE_LOOP = "mixed_in_forward"
MAKERS[TABLE_LOOP] = MAKERS["mixed_sgd"]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "mode",
    quick_of(
        [
            "bsp(pull=forward)",
            "asp(servers=2, pull=forward)",
            "ssp(1, pull=forward, compensation=0.5)",
            "backup(1, pull=forward)",
        ],
        quick=["bsp(pull=forward)"],
    ),
)
def test_what_is_computed_is_what_it_is_without(tmp_path: Path, mode: str) -> None:
    setup = replace(SETUP, loop=LOOP)
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync(mode))
    assert_sound(outcome, setup)
    found = [one["found_after"] for one in outcome.results.values()]
    assert sum(one["coming"] for one in found) > 0  # the first step of an epoch waits for nothing
    assert_replayed(outcome, LOOP, mode)


@pytest.mark.parametrize(
    ("mode", "worker", "where"),
    quick_of(
        [
            (mode, worker, where)
            for mode in ("bsp", "asp", "asp(servers=2, ", "ssp(1, replicas=0, ")
            for worker in (0, 2)
            for where in ("forward", "backward", "update")
        ],
        quick=[("bsp", 0, "forward")],
    ),
)
def test_every_sample_counts_once_though_somebody_dies_while_others_wait_for_parameters(
    tmp_path: Path, mode: str, worker: int, where: str
) -> None:
    """Worker 0 holds parameters that the forward passes of the others wait for."""
    sync = parse_sync(f"{mode if mode.endswith(' ') else mode + '('}pull=forward)")
    setup = replace(LONG, samples=120, think_s=0.01)
    outcome = run_with(tmp_path, setup, [kill(worker, 4, where)], sync=sync)
    assert_sound(outcome, setup, killed=(worker,))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "mode",
    quick_of(
        ["bsp(pull=forward)", "asp(servers=2, pull=forward)", "ssp(1, pull=forward)"],
        quick=["asp(servers=2, pull=forward)"],
    ),
)
def test_tables_are_pushed_by_rows_and_come_whole(tmp_path: Path, mode: str) -> None:
    setup, sync = replace(SETUP, loop=TABLE_LOOP), parse_sync(mode)
    outcome = run_with(tmp_path, setup, [], workers=2, sync=sync)
    assert_sound(outcome, setup)
    assert sync.service is not None
    updates = sorted(outcome.of_kind(UpdateApplied), key=lambda one: one.number)
    assert_same(Replay(outcome, TABLE_LOOP, sync.service), updates, outcome.results[0]["state"])


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "backward", "update"])
@pytest.mark.parametrize("replicas", [0, 1])
def test_every_sample_counts_once_though_a_server_of_a_table_dies(
    tmp_path: Path, replicas: int, where: str
) -> None:
    sync = parse_sync(f"asp(servers=2, replicas={replicas}, pull=forward)")
    setup = replace(LONG, samples=120, think_s=0.01, loop=TABLE_LOOP)
    outcome = run_with(tmp_path, setup, [kill(0, 4, where)], sync=sync)
    assert_sound(outcome, setup, killed=(0,))
