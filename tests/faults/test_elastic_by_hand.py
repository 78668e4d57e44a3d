# SPDX-License-Identifier: Apache-2.0
"""Workers die in loops that change more than their optimizer does, or hold on to a scaler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import judge, kill, run_with

from cases import quick_of

LOOPS = ["perturbed", "shrunk", "scaled_windows", "own_optimizer", "decayed", "summed"]
PLACES = ["forward", "exchange", "update", "between"]
QUICK = [("perturbed", "exchange"), ("perturbed", "update"), ("shrunk", "update")]
QUICK += [("scaled_windows", "forward"), ("own_optimizer", "exchange")]


@pytest.mark.parametrize(
    ("loop", "place"), quick_of([(loop, place) for loop in LOOPS for place in PLACES], quick=QUICK)
)
def test_the_others_train_the_same_model_when_a_worker_is_killed(
    tmp_path: Path, loop: str, place: str
) -> None:
    step = 5 if (loop, place) == ("scaled_windows", "update") else 4
    setup, faults = Setup(loop=loop), [kill(1, step, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)
