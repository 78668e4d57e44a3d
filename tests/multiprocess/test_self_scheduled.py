# SPDX-License-Identifier: Apache-2.0
"""Workers that pull the parts of each global batch compute what one process computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loops import LOOPS, Problem, Setting
from test_exactness import check

from cases import quick_of

if TYPE_CHECKING:
    from gangline.testing import WorkerPool


BY_TURNS = {"gan", "gan_one_ahead", "own_window", "window_first", "looks_and_skips"}
"""Loops that count turns, or leave some out."""
WEIGHTED = {"token_weights", "one_ahead_with_weights"}
QUICK = ["mlp", "clipping_and_schedule", "two_losses", "loader_workers", "sum_reduced"]


@pytest.mark.parametrize("name", quick_of(sorted({*LOOPS} - BY_TURNS - WEIGHTED), quick=QUICK))
def test_a_loop_is_exact_when_parts_are_pulled(name: str, worker_pool: WorkerPool) -> None:
    problem = Problem(num_workers=2 if name == "loader_workers" else 0)
    setting = Setting((1.0, 1.0), allocation="self-scheduled", jitter_s=0.004)
    check(worker_pool, name, problem, setting)
