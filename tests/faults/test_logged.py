# SPDX-License-Identifier: Apache-2.0
"""What scripts log speaks for every sample once, whoever is killed when."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import judge, kill, run_with

from cases import quick_of
from gangline.spec.event import Logged, StepDone, UnitsExchanged


@pytest.mark.parametrize(
    "place", quick_of(["forward", "exchange", "update", "between"], quick=["exchange"])
)
def test_each_sample_is_logged_once_when_a_worker_is_killed(tmp_path: Path, place: str) -> None:
    setup, faults = Setup(loop="logging"), [kill(1, 3, place)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    by_step: dict[int, list[Logged]] = {}
    for event in outcome.of_kind(Logged):
        by_step.setdefault(event.step, []).append(event)
    for window in outcome.ledger.windows:
        newest = max(event.view for event in by_step[window.step])
        own = [event for event in by_step[window.step] if event.view == newest]
        logged = {event.worker: event.samples for event in own}
        assert len(own) == len(logged), "a worker has logged a step twice"
        # What a worker did in the last half second before it was killed may be lost.
        assert logged.items() <= window.samples.items() or 1 in logged
        assert {w: n for w, n in window.samples.items() if w != 1}.items() <= logged.items()
    steps = {(event.worker, event.step): event for event in outcome.of_kind(StepDone)}
    told = outcome.of_kind(UnitsExchanged)
    assert {(event.worker, event.step) for event in told} == set(steps)
    for event in told:
        assert event.units
        for unit, ready_s, begin_s, end_s in event.units:
            assert unit >= 0
            assert 0 <= ready_s <= begin_s <= end_s < 60
