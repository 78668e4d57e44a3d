# SPDX-License-Identifier: Apache-2.0
"""When a round is due: by samples, by what rounds cost, or never by itself."""

from __future__ import annotations

import pytest

from gangline.control.sync.rounds import (
    BUSY_PART,
    CALM,
    DRIFT,
    MAX_BUSY_PART,
    MAX_RARITY,
    Report,
    Round,
    RoundClock,
)
from gangline.spec.sync import parse_sync

BATCH = 10


def clock(mode: str, now: float = 100.0) -> RoundClock:
    return RoundClock(parse_sync(mode), global_batch=BATCH, now=now)


def ended(
    rounds: RoundClock,
    *,
    opened_s: float,
    took_s: float,
    busy_s: float,
    drift: float = 0.0,
    is_whole: bool = False,
) -> None:
    """A round of two teams, of which one was kept half as long, and is half as far away."""
    one = Round(0, (0, 1), opened_s=opened_s, is_whole=is_whole)
    rounds.begin(opened_s)
    one.reports[0] = Report(5, busy_s / 2, took_s, drift / 2)
    assert not one.is_done
    one.reports[1] = Report(7, busy_s, took_s, drift)
    assert one.is_done
    rounds.end(one, opened_s + took_s)


@pytest.mark.parametrize(("rate", "batches"), [(0.25, 4), (0.5, 2), (0.1, 10)])
def test_a_percentage_counts_the_samples_of_all_teams(rate: float, batches: int) -> None:
    rounds = clock(f"percentage({rate})")
    for _ in range(2 * batches - 1):
        assert not rounds.is_due(1e9)
        rounds.add_samples(BATCH // 2)
    rounds.add_samples(BATCH // 2)
    assert rounds.is_due(100.0)
    rounds.begin(100.0)
    assert not rounds.is_due(1e9), "counting begins anew"


def test_local_opens_a_round_a_step_before_the_copies_are_taken() -> None:
    rounds = clock("local(3)")
    rounds.add_samples(2 * BATCH - 1)
    assert not rounds.is_due(1e9)
    rounds.add_samples(1)
    assert rounds.is_due(100.0)
    rounds.begin(100.0)
    assert not rounds.is_due(1e9), "counting begins anew"
    every = clock("local(1)")
    assert not every.is_due(1e9), "nobody has made a step"
    every.add_samples(1)
    assert every.is_due(100.0)


@pytest.mark.parametrize("mode", ["none", "local(3, strict)"])
def test_none_and_local_open_no_round_in_the_background(mode: str) -> None:
    rounds = clock(mode)
    rounds.add_samples(1000 * BATCH)
    assert not rounds.is_due(1e9)


def test_flexible_begins_with_the_first_batch_and_waits_for_new_samples() -> None:
    rounds = clock("flexible")
    assert not rounds.is_due(1e9)
    rounds.add_samples(BATCH)
    assert rounds.is_due(100.0), "what it costs is not known: it is tried"
    assert rounds.interval_s == 0.0


def test_flexible_spends_a_small_part_of_the_time_on_rounds() -> None:
    rounds = clock("flexible")
    ended(rounds, opened_s=100.0, took_s=0.5, busy_s=BUSY_PART)
    assert rounds.interval_s == pytest.approx(1.0)
    rounds.add_samples(BATCH)
    assert not rounds.is_due(100.99)
    assert rounds.is_due(101.01)


def test_flexible_lets_an_exchange_end_before_the_next() -> None:
    rounds = clock("flexible")
    ended(rounds, opened_s=100.0, took_s=8.0, busy_s=0.03)
    assert rounds.interval_s == pytest.approx(8.0 * (1 + CALM)), "and some steps go without one"


def test_flexible_comes_oftener_when_teams_drift_apart_but_not_without_end() -> None:
    intervals = []
    for drift in (0.5 * DRIFT, DRIFT, 2 * DRIFT, 1e6):
        rounds = clock("flexible")
        ended(rounds, opened_s=100.0, took_s=0.05, busy_s=0.03, drift=drift)
        assert rounds.drift == drift
        intervals.append(rounds.interval_s)
    assert intervals == pytest.approx(
        [0.03 / BUSY_PART, 0.03 / BUSY_PART, 0.03 / (2 * BUSY_PART), 0.03 / MAX_BUSY_PART]
    )


def test_flexible_follows_what_rounds_cost_and_not_a_single_one() -> None:
    rounds = clock("flexible")
    for number in range(5):
        ended(rounds, opened_s=100.0 + number, took_s=0.1, busy_s=0.03)
    ended(rounds, opened_s=110.0, took_s=5.0, busy_s=1.5)
    assert rounds.interval_s == pytest.approx(0.03 / BUSY_PART)
    for number in range(5):
        ended(rounds, opened_s=120.0 + number, took_s=5.0, busy_s=1.5)
    assert rounds.interval_s == pytest.approx(1.5 / BUSY_PART)


def test_a_round_that_all_wait_for_says_nothing_of_the_next() -> None:
    rounds = clock("flexible")
    ended(rounds, opened_s=100.0, took_s=30.0, busy_s=30.0, is_whole=True)
    assert rounds.interval_s == 0.0
    assert rounds.patience_s == 2.0


def test_patience_grows_with_what_rounds_take() -> None:
    rounds = clock("percentage(0.5)")
    assert rounds.patience_s == 2.0
    ended(rounds, opened_s=100.0, took_s=3.0, busy_s=0.1)
    assert rounds.patience_s == 15.0


@pytest.mark.parametrize("mode", ["percentage(0.5)", "flexible"])
def test_rounds_come_more_rarely_when_a_team_is_held_up(mode: str) -> None:
    rounds = clock(mode)
    ended(rounds, opened_s=0.0, took_s=1.0, busy_s=0.01)
    rounds.begin(10.0)
    rounds.lower()
    rounds.add_samples(2 * BATCH)
    assert not rounds.is_due(11.5)
    rounds.add_samples(2 * BATCH)
    assert rounds.is_due(10.01 + 2 * (1 + CALM))
    for _ in range(10):
        rounds.lower()
    assert rounds.rarity == MAX_RARITY
