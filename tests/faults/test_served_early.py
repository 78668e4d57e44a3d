# SPDX-License-Identifier: Apache-2.0
"""Gradients that are pushed while the backward pass goes on, in jobs of real processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from elastic_bodies import Setup
from elastic_jobs import kill, run_with
from test_served import assert_sound
from test_served_exact import MAKERS, SETUP
from test_served_loops import assert_replayed

from cases import quick_of
from gangline.spec.event import Decision
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome

MAKERS |= dict.fromkeys(("served_clipped", "served_two_losses"), MAKERS["served_adam"])


def told_late(outcome: Outcome) -> list[float]:
    """Which workers say that they push after the backward pass."""
    said = [one for one in outcome.of_kind(Decision) if one.what == "push_late"]
    return sorted(one.numbers["worker"] for one in said)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("loop", "mode", "accumulate"),
    quick_of(
        [
            (loop, mode, accumulate)
            for loop in ("served_clipped", "served_two_losses", "served_adam")
            for mode in ("bsp", "asp(servers=2)", "ssp(1, replicas=0)")
            for accumulate in (1, 3)
        ],
        quick=[("served_clipped", "bsp", 1)],
    ),
)
def test_what_counts_is_the_gradient_at_the_step(
    tmp_path: Path, loop: str, mode: str, accumulate: int
) -> None:
    setup = replace(SETUP, loop=loop, accumulate=accumulate)
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync(mode))
    assert_sound(outcome, setup)
    assert_replayed(outcome, loop, mode)
    assert told_late(outcome) == ([0.0, 1.0] if loop == "served_clipped" else [])


@pytest.mark.slow
def test_a_scaler_changes_gradients_too(tmp_path: Path) -> None:
    setup = replace(SETUP, loop="served_scaled")
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync("bsp"))
    assert_sound(outcome, setup)
    assert told_late(outcome) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("mode", "worker"),
    quick_of(
        [(mode, worker) for mode in ("bsp", "asp", "asp(replicas=0)") for worker in (0, 2)],
        quick=[("asp", 2)],
    ),
)
def test_a_worker_that_dies_amid_an_early_push_counts_nothing_of_it(
    tmp_path: Path, mode: str, worker: int
) -> None:
    """Some units of its gradient are with the servers then; worker 0 is one of them."""
    setup = Setup(loop="served_wide", samples=36, batch=6, epochs=1, allocation="balanced")
    outcome = run_with(tmp_path, setup, [kill(worker, 2, "backward")], sync=parse_sync(mode))
    assert_sound(outcome, setup, killed=(worker,))
