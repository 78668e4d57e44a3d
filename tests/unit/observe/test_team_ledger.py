# SPDX-License-Identifier: Apache-2.0
"""The ledger of teams: their own orders are put together, and what is missing or doubled is found."""

from __future__ import annotations

import random

import pytest

from gangline.observe import summarize
from gangline.observe.ledger import read_ledger
from gangline.spec.errors import LogError
from gangline.spec.event import Event, Regrouped, RoundEnded, SamplesLeased, StepDone


def leased(team: int, number: int, start: int, stop: int, *, epoch: int = 0) -> SamplesLeased:
    return SamplesLeased(t=0.0, team=team, epoch=epoch, number=number, start=start, stop=stop)


def step(team: int, number: int, start: int, stop: int, *, epoch: int = 0) -> StepDone:
    """A step of a team of one: `start` and `stop` are in the team's own order."""
    return StepDone(
        t=float(number),
        worker=team,
        step=number,
        epoch=epoch,
        view=0,
        samples=stop - start,
        start=start,
        stop=stop,
        compute_s=0.1,
        data_s=0.0,
        exchange_s=0.0,
        update_s=0.0,
        team=team,
    )


def merged(number: int, *, epoch: int = 0, is_committed: bool = True, **offsets: int) -> RoundEnded:
    """A round: `t0=8` says that team 0 brought its first 8 samples."""
    return RoundEnded(
        t=float(number),
        number=number,
        epoch=epoch,
        is_committed=is_committed,
        is_whole=False,
        offsets={name[1:]: offset for name, offset in offsets.items()},
        took_s=0.1,
        exchange_s=0.1,
        busy_s=0.0,
        drift=0.0,
        interval_s=0.0,
        sync="none",
        reason="",
    )


LEASES: list[Event] = [
    leased(0, 0, 0, 8),
    leased(1, 0, 8, 14),
    leased(0, 1, 14, 18),
    leased(1, 1, 18, 20),
]
STEPS: list[Event] = [
    step(0, 0, 0, 4),
    step(0, 1, 4, 10),
    step(0, 2, 10, 12),
    step(1, 0, 0, 6),
    step(1, 1, 6, 8),
]


def test_the_teams_orders_make_up_the_epoch() -> None:
    ledger = read_ledger([*LEASES, *STEPS, merged(0, t0=4, t1=6), merged(1, t0=12, t1=8)])
    ledger.check(length=20, epochs=1)
    assert [(window.start, window.stop) for window in ledger.windows] == [
        (0, 4),
        (4, 8),
        (14, 16),
        (16, 18),
        (8, 14),
        (18, 20),
    ]
    assert ledger.count_repeated() == 0
    assert ledger.count_lost(length=20) == 0


@pytest.mark.parametrize("told", [2, 0])
def test_what_a_killed_worker_brought_to_a_round_was_used_though_its_log_ends_before(
    told: int,
) -> None:
    events = [*LEASES, *STEPS[:told], *STEPS[3:], merged(0, t0=12, t1=8)]
    ledger = read_ledger(events)
    ledger.check(length=20, epochs=1)
    assert ledger.num_samples == 20


def test_the_order_of_the_events_does_not_matter() -> None:
    events = [*LEASES, *STEPS, merged(0, t0=4, t1=6), merged(1, t0=12, t1=8)]
    random.Random(2).shuffle(events)
    read_ledger(events).check(length=20, epochs=1)


def test_samples_that_were_never_merged_are_missed() -> None:
    ledger = read_ledger([*LEASES, *STEPS, merged(0, t0=12, t1=6)])
    with pytest.raises(LogError, match="epoch 0: the samples 18 to 19 were not used"):
        ledger.check(length=20, epochs=1)


def test_a_round_that_failed_merges_nothing() -> None:
    failed = merged(1, is_committed=False, t0=12, t1=8)
    ledger = read_ledger([*LEASES, *STEPS, merged(0, t0=12, t1=6), failed])
    with pytest.raises(LogError, match="samples 18 to 19 were not used"):
        ledger.check(length=20, epochs=1)


def test_samples_that_nobody_leased_are_missed() -> None:
    ledger = read_ledger([*LEASES[1:], *STEPS[3:], step(0, 0, 0, 4), merged(0, t0=4, t1=8)])
    with pytest.raises(LogError, match="the samples 0 to 7 were left out before it"):
        ledger.check(length=20, epochs=1)


def test_samples_that_two_teams_merged_are_found() -> None:
    doubled = [*LEASES[:3], leased(1, 1, 16, 20)]
    steps = [*STEPS[:4], step(1, 1, 6, 10)]
    ledger = read_ledger([*doubled, *steps, merged(0, t0=12, t1=10)])
    with pytest.raises(LogError, match="the samples 16 to 17 were used before"):
        ledger.check(length=20, epochs=1)
    assert ledger.count_repeated() == 2


def test_a_step_that_nobody_reported_is_missed() -> None:
    steps = [one for one in STEPS if one is not STEPS[1]]
    ledger = read_ledger([*LEASES, *steps, merged(0, t0=12, t1=8)])
    with pytest.raises(LogError, match="the samples 4 to 7 were left out"):
        ledger.check(length=20, epochs=1)


def test_what_a_lost_team_had_not_merged_is_used_by_another() -> None:
    taken_over = [leased(0, 2, 10, 14), leased(0, 3, 18, 20)]
    steps = [*STEPS, step(0, 3, 12, 18)]
    ledger = read_ledger([*LEASES, *taken_over, *steps, merged(0, t0=4, t1=2), merged(1, t0=18)])
    ledger.check(length=20, epochs=1)


def test_the_summary_counts_the_samples_of_a_lost_team_once() -> None:
    events = [*LEASES, *STEPS, merged(0, t0=12, t1=6)]
    events += [leased(2, 0, 18, 20), step(2, 0, 0, 2), merged(1, t0=12, t1=6, t2=2)]
    assert summarize(events).samples == 20


def test_a_step_that_was_done_again_in_its_team_counts_once() -> None:
    back = Regrouped(
        t=1.0,
        worker=1,
        view=1,
        group=1,
        members=[1],
        step=1,
        num_behind=0,
        took_s=0.1,
        reason="",
        team=1,
    )
    again = StepDone(**{**{f: getattr(STEPS[4], f) for f in STEPS[4].__struct_fields__}, "view": 1})
    ledger = read_ledger([*LEASES, *STEPS, back, again, merged(0, t0=12, t1=8)])
    ledger.check(length=20, epochs=1)
    assert ledger.num_void == 1


def test_every_epoch_has_leases_of_its_own() -> None:
    second = [leased(1, 0, 0, 20, epoch=1), step(1, 3, 0, 20, epoch=1)]
    whole = [*LEASES, *STEPS, merged(0, t0=12, t1=8), *second]
    read_ledger([*whole, merged(1, epoch=1, t0=0, t1=20)]).check(length=20, epochs=2)
    with pytest.raises(LogError, match="epoch 1: the samples 0 to 19 were not used"):
        read_ledger(whole).check(length=20, epochs=2)
