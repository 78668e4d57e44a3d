# SPDX-License-Identifier: Apache-2.0
"""`auto` while a job runs: when it parts the workers, and when it brings them together again."""

from __future__ import annotations

import pytest

from gangline.control.sync.autosync import QUICK, STAY_S, SyncWatch
from gangline.planning.structure.relaxing import SLOW_EXCHANGE_S

LATER = STAY_S + 0.1
MEMBERS = (0, 1)


def in_step(exchanges: list[float], *, compute_s: float = 0.02, steps: int = 24) -> SyncWatch:
    watch = SyncWatch(0.0)
    for _ in range(steps):
        for worker, exchange_s in enumerate(exchanges):
            watch.see_step(worker, exchange_s=exchange_s, compute_s=compute_s)
    return watch


def apart(exchange_s: float, *, rounds: int = 9) -> SyncWatch:
    watch = SyncWatch(0.0)
    for _ in range(rounds):
        watch.see_round(exchange_s)
    return watch


def test_groups_part_where_exchanging_is_slow() -> None:
    advice = in_step([0.2, 0.5]).advise(LATER, members=MEMBERS, is_apart=False)
    assert advice is not None
    assert str(advice.sync) == "flexible"
    assert "an exchange takes 0.2 s, more than 0.05 s and than computing, 0.02 s" in advice.reason


@pytest.mark.parametrize(
    "watch",
    [
        in_step([0.9, 0.01]),  # the first only waits for the second
        in_step([0.2, 0.2], compute_s=0.3),
        in_step([0.2, 0.2], steps=23),
        in_step([SLOW_EXCHANGE_S, SLOW_EXCHANGE_S]),
    ],
    ids=["waiting", "computing is slower", "too soon", "quick enough"],
)
def test_workers_stay_in_step(watch: SyncWatch) -> None:
    assert watch.advise(LATER, members=MEMBERS, is_apart=False) is None


def test_workers_come_together_where_exchanging_has_become_quick() -> None:
    advice = apart(0.01).advise(LATER, members=MEMBERS, is_apart=True)
    assert advice is not None
    assert str(advice.sync) == "full"
    assert "the leaders exchange in 0.01 s" in advice.reason


@pytest.mark.parametrize("watch", [apart(QUICK * SLOW_EXCHANGE_S), apart(0.01, rounds=8)])
def test_groups_stay_apart(watch: SyncWatch) -> None:
    assert watch.advise(LATER, members=MEMBERS, is_apart=True) is None


def test_nothing_is_changed_for_a_while_after_a_change() -> None:
    watch = in_step([0.2, 0.2])
    assert watch.advise(STAY_S - 0.1, members=MEMBERS, is_apart=False) is None
    watch.changed(100.0)
    for _ in range(24):
        for worker in MEMBERS:
            watch.see_step(worker, exchange_s=0.2, compute_s=0.02)
    assert watch.advise(100.0 + STAY_S - 0.1, members=MEMBERS, is_apart=False) is None
    assert watch.advise(100.0 + LATER, members=MEMBERS, is_apart=False) is not None


def test_who_has_left_has_no_say() -> None:
    watch = in_step([0.2, 0.5, 0.001])
    assert watch.advise(LATER, members=(0, 1, 2), is_apart=False) is None
    assert watch.advise(LATER, members=MEMBERS, is_apart=False) is not None
    assert watch.advise(LATER, members=(0, 1, 3), is_apart=False) is None, "3 has only just come"
