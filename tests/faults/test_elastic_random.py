# SPDX-License-Identifier: Apache-2.0
"""Random fault plans over real processes: whatever happens, each sample is used exactly once."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import hang, judge, kill, run_with

from cases import quick_of

if TYPE_CHECKING:
    from gangline.spec.faults import Fault

_PLACES = ("data", "forward", "backward", "exchange", "update", "between")
_LOOPS = ("plain", "plain", "stateful", "gan")


def draw(seed: int) -> tuple[Setup, list[Fault], int]:
    """A job and what goes wrong with it; at least one worker is never harmed."""
    chance = random.Random(seed)
    workers = chance.choice((3, 3, 4))
    setup = Setup(
        loop=chance.choice(_LOOPS),
        samples=chance.randrange(30, 60),
        batch=chance.randrange(8, 14),
        epochs=2,
        num_workers=chance.choice((0, 0, 0, 1)),
        validate=chance.random() < 0.3,
        allocation=chance.choice(("equal", "balanced")),
    )
    victims = chance.sample(range(workers), chance.randrange(1, workers))
    faults = []
    for victim in victims:
        step, place = chance.randrange(setup.steps), chance.choice(_PLACES)
        if chance.random() < 0.2:
            faults.append(hang(victim, step, place, 0.1 + chance.random() * 0.4))
            continue
        if step >= setup.steps // 2 and chance.random() < 0.2:
            step, place = setup.steps // 2, "end"
        faults.append(kill(victim, step, place))
    return setup, faults, workers


def survive(folder: Path, seed: int) -> None:
    setup, faults, workers = draw(seed)
    judge(run_with(folder, setup, faults, workers=workers), setup, faults)


@pytest.mark.parametrize("seed", quick_of(range(12), quick=range(4)))
def test_nothing_is_lost_whatever_the_plan(tmp_path: Path, seed: int) -> None:
    survive(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_nothing_is_lost_in_hundreds_of_plans(tmp_path: Path, seed: int) -> None:
    survive(tmp_path, seed)
