# SPDX-License-Identifier: Apache-2.0
"""The ledger: which reports count, and that a sample that is missing or used twice is found."""

from __future__ import annotations

import random

import msgspec
import pytest

from gangline.observe.ledger import read_ledger
from gangline.spec.errors import LogError
from gangline.spec.event import Event, EventsLost, Regrouped, StepDone, StepSummary, ViewAdopted


def step(
    number: int, *, worker: int = 0, view: int = 0, start: int | None = None, **fields: int
) -> StepDone:
    """A report on a step of 8 samples, of which this worker computed 4."""
    begin = 8 * (number % 3) if start is None else start
    return StepDone(
        t=float(number),
        worker=worker,
        step=number,
        epoch=fields.get("epoch", number // 3),
        view=view,
        samples=fields.get("samples", 4),
        start=begin,
        stop=fields.get("stop", begin + 8),
        compute_s=0.1,
        data_s=0.0,
        exchange_s=0.0,
        update_s=0.0,
    )


def regrouped(view: int, at: int, *, worker: int = 0, members: tuple[int, ...] = (0,)) -> Regrouped:
    return Regrouped(
        t=0.0,
        worker=worker,
        view=view,
        group=view,
        members=list(members),
        step=at,
        num_behind=0,
        took_s=0.1,
        reason="",
    )


def adopted(view: int, members: tuple[int, ...]) -> ViewAdopted:
    return ViewAdopted(t=0.0, view=view, step=0, members=list(members), shares=[4, 4], reason="")


def both(numbers: range, *, view: int = 0) -> list[Event]:
    return [step(number, worker=worker, view=view) for number in numbers for worker in (0, 1)]


def test_a_run_without_faults_is_complete() -> None:
    ledger = read_ledger([adopted(0, (0, 1)), *both(range(6))])
    ledger.check(length=24, epochs=2)
    ledger.check(length=24)
    assert [window.step for window in ledger.windows] == [0, 1, 2, 3, 4, 5]
    assert ledger.num_void == 0
    assert ledger.num_epochs == 2


def test_the_order_of_the_events_does_not_matter() -> None:
    events = [*both(range(3)), regrouped(1, 2), step(2, view=1, samples=8)]
    random.Random(1).shuffle(events)
    ledger = read_ledger(events)
    ledger.check(length=24, epochs=1)
    assert ledger.num_void == 2
    assert ledger.windows[-1].samples == {0: 8}


def test_a_step_that_only_the_lost_worker_finished_is_void() -> None:
    ledger = read_ledger(
        [*both(range(2)), step(2, worker=1), regrouped(1, 2), step(2, view=1, samples=8)]
    )
    ledger.check(length=24, epochs=1)
    assert ledger.num_void == 1


def test_a_step_that_the_furthest_survivor_finished_counts() -> None:
    """The other survivor copies it, and never reports it."""
    ledger = read_ledger([*both(range(2)), step(2), regrouped(1, 3), regrouped(1, 3, worker=1)])
    ledger.check(length=24, epochs=1)
    assert ledger.windows[2].samples == {0: 4}


def test_a_step_counts_when_the_one_that_hung_brings_it_back() -> None:
    """Step 2 was void for group 1, which never did it again; then all copied it from worker 1."""
    events = [*both(range(2)), regrouped(1, 2), step(2, worker=1), regrouped(2, 3)]
    ledger = read_ledger(events)
    ledger.check(length=24, epochs=1)
    assert ledger.num_void == 0


def test_a_void_step_stays_void_when_nobody_did_it() -> None:
    ledger = read_ledger([*both(range(2)), step(2, worker=1), regrouped(1, 2)])
    with pytest.raises(LogError, match="the samples 16 to 23 were not used"):
        ledger.check(length=24, epochs=1)


def test_samples_that_were_left_out_are_found() -> None:
    ledger = read_ledger([step(0), step(2)])
    assert ledger.problems(length=24, epochs=1) == [
        "epoch 0, step 2: the samples 8 to 15 were left out before it"
    ]


def test_samples_that_were_used_twice_are_found() -> None:
    ledger = read_ledger([step(0), step(1, start=4), step(2, start=12, stop=24)])
    with pytest.raises(LogError, match="epoch 0, step 1: the samples 4 to 7 were used before"):
        ledger.check(length=24)


def test_an_epoch_that_never_came_is_found() -> None:
    ledger = read_ledger(both(range(3)))
    assert ledger.problems(length=24, epochs=2) == ["epoch 1: the samples 0 to 23 were not used"]


def test_an_epoch_that_is_too_long_is_found() -> None:
    ledger = read_ledger(both(range(3)))
    assert ledger.problems(length=20) == ["epoch 0 used 24 samples of 20"]


def test_a_step_that_was_committed_in_two_ways_is_found() -> None:
    ledger = read_ledger([step(0), step(0, worker=1, start=8)])
    assert ledger.contradictions == (
        "step 0 was committed in different ways: [(0, 0, 0, 8), (0, 0, 8, 16)]",
    )
    assert ledger.contradictions[0] in ledger.problems(length=8)


def test_parts_that_do_not_make_up_the_batch_are_found() -> None:
    events = [adopted(0, (0, 1)), step(0), step(0, worker=1, samples=3)]
    assert read_ledger(events).problems(length=8) == ["step 0: its workers computed 7 samples of 8"]
    more = [step(0, samples=5), step(0, worker=1)]
    assert read_ledger(more).problems(length=8) == ["step 0: its workers computed 9 samples of 8"]


def test_a_killed_worker_need_not_have_told_its_part() -> None:
    read_ledger([adopted(0, (0, 1)), step(0)]).check(length=8)


def test_a_run_that_did_nothing_has_an_empty_ledger() -> None:
    ledger = read_ledger([])
    assert ledger.windows == ()
    assert ledger.num_epochs == 0
    ledger.check(length=8)


def summary(number: int, *, view: int = 0) -> StepSummary:
    return StepSummary(
        t=float(number),
        step=number,
        epoch=number // 3,
        view=view,
        workers=100,
        samples=8,
        start=8 * (number % 3),
        stop=8 * (number % 3) + 8,
        least_compute_s=0.1,
        median_compute_s=0.1,
        greatest_compute_s=0.1,
        slowest=0,
        exchange_s=0.0,
        update_s=0.0,
    )


def test_summaries_of_many_workers_are_read_too() -> None:
    events = [*(summary(number) for number in range(3)), regrouped(1, 2), summary(2, view=1)]
    ledger = read_ledger(events)
    ledger.check(length=24, epochs=1)
    assert ledger.num_void == 1


def test_lost_and_repeated_samples_are_counted() -> None:
    whole = read_ledger(both(range(6)))
    assert (whole.count_lost(length=24), whole.count_repeated()) == (0, 0)
    holes = read_ledger([step(0), step(2, start=12), step(3), step(5)])
    assert holes.count_lost() == 4 + 8
    assert holes.count_lost(length=24) == 4 + 8 + 4
    assert read_ledger([step(0), step(1, start=4)]).count_repeated() == 4


def test_a_ledger_with_missing_events_says_so_instead_of_blaming_the_run() -> None:
    lost = EventsLost(
        t=0.0,
        source="worker 0",
        count=3,
        reason="No space left on device",
        first_step=1,
        last_step=3,
    )
    ledger = read_ledger([step(0), lost])
    with pytest.raises(LogError, match=r"3 of worker 0, steps 1 to 3.*it cannot be told whether"):
        ledger.check(length=24, epochs=1)


def pulled(worker: int, *parts: tuple[int, int], samples: int | None = None) -> StepDone:
    """A report on the first step, of 8 samples, of which a worker has pulled these."""
    count = sum(stop - start for start, stop in parts) if samples is None else samples
    told = step(0, worker=worker, samples=count)
    return msgspec.structs.replace(told, parts=[list(part) for part in parts])


def test_parts_that_were_pulled_make_up_their_step() -> None:
    ledger = read_ledger([adopted(0, (0, 1)), pulled(0, (0, 3), (6, 7)), pulled(1, (3, 6), (7, 8))])
    ledger.check(length=8, epochs=1)


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ([pulled(0, (0, 5)), pulled(1, (4, 7))], "the samples 4 to 6 of worker 1 are not its own"),
        ([pulled(0, (0, 4)), pulled(1, (4, 7), (9, 10))], "the samples 9 to 9 of worker 1"),
        ([pulled(0, (0, 4)), pulled(1, (4, 7))], "its workers computed 7 samples of 8"),
        (
            [pulled(0, (0, 4)), pulled(1, (4, 7), samples=4)],
            "computed 4 samples, and its parts have 3",
        ),
    ],
    ids=["twice", "elsewhere", "too few", "miscounted"],
)
def test_parts_that_do_not_are_found(reports: list[StepDone], said: str) -> None:
    with pytest.raises(LogError, match=said):
        read_ledger([adopted(0, (0, 1)), *reports]).check(length=8, epochs=1)
