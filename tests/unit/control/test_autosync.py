# SPDX-License-Identifier: Apache-2.0
"""`auto` while a job runs: when it parts the workers, and when it brings them together again."""

from __future__ import annotations

import pytest

from gangline.control.sync.autosync import PART_GAIN, QUICK, STAY_S, SyncWatch
from gangline.control.sync.pace import Pace

LATER = STAY_S + 0.1
COMPUTE_S = 0.2


def pace(gain: float) -> Pace:
    return Pace(in_step=100.0, apart=gain * 100.0, num_used=2, num_workers=3, exchange_s=2.5)


def apart(exchange_s: float, *, rounds: int = 9, steps: int = 24) -> SyncWatch:
    watch = SyncWatch()
    for _ in range(rounds):
        watch.see_round(exchange_s)
    for _ in range(steps):
        watch.see_step(COMPUTE_S)
    return watch


def test_workers_part_where_they_make_more_apart() -> None:
    advice = SyncWatch(levels=2).advise(0.0, pace=pace(1.3), is_apart=False)
    assert advice is not None
    assert str(advice.sync) == "full/flexible"
    assert advice.reason == (
        "in step, 2 of 3 workers are used, which exchange for 2.5 s of each step: about 100 "
        "samples/s; apart, each at its own pace, all would make about 130: they part"
    )


@pytest.mark.parametrize("known", [None, pace(PART_GAIN - 0.01)], ids=["not known", "not worth it"])
def test_workers_stay_in_step(known: Pace | None) -> None:
    assert SyncWatch().advise(LATER, pace=known, is_apart=False) is None


def test_workers_come_together_where_exchanging_has_become_quick() -> None:
    advice = apart(0.9 * QUICK * COMPUTE_S).advise(LATER, pace=None, is_apart=True)
    assert advice is not None
    assert str(advice.sync) == "full"
    assert "the leaders exchange in 0.018 s, less than 10% of what a step computes" in advice.reason


@pytest.mark.parametrize(
    "watch",
    [apart(QUICK * COMPUTE_S), apart(0.01, rounds=8), apart(0.01, steps=23)],
    ids=["not quick", "too few rounds", "too few steps"],
)
def test_groups_stay_apart(watch: SyncWatch) -> None:
    assert watch.advise(LATER, pace=None, is_apart=True) is None


def test_nothing_is_changed_for_a_while_after_a_change() -> None:
    watch = SyncWatch()
    watch.changed(100.0)
    assert watch.advise(100.0 + STAY_S - 0.1, pace=pace(2.0), is_apart=False) is None
    assert watch.advise(100.0 + LATER, pace=pace(2.0), is_apart=False) is not None
