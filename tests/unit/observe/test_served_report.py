# SPDX-License-Identifier: Apache-2.0
"""What the report and its page say of parameter servers."""

from __future__ import annotations

import pytest

from gangline.observe import summarize
from gangline.observe.page.accounts import Accounts
from gangline.observe.page.bill import Price, make_bill
from gangline.observe.page.columns import Columns
from gangline.observe.page.document import run_document
from gangline.observe.page.fold import Fold
from gangline.observe.served import served_lines, staleness_bins
from gangline.spec.event import (
    AnyEvent,
    Decision,
    LogOpened,
    ServersUsed,
    StepDone,
    UpdateApplied,
    UpdateVoided,
)


def applied(number: int, staleness: int, *, team: int = 0) -> UpdateApplied:
    return UpdateApplied(
        t=float(number),
        number=number,
        epoch=0,
        teams=(team,),
        clocks=(number,),
        weights=(1.0,),
        offsets=(number + 1,),
        staleness=staleness,
    )


def voided(clock: int, samples: int) -> UpdateVoided:
    return UpdateVoided(t=5.0, team=1, epoch=0, start=0, stop=samples, clock=clock)


def used(worker: int, epoch: int) -> ServersUsed:
    return ServersUsed(
        t=6.0,
        worker=worker,
        epoch=epoch,
        pushed_bytes=500_000_000,
        pulled_bytes=1_000,
        num_pulls=5,
        num_fetches=epoch,
    )


def step(number: int, worker: int, team: int, *, exchange_s: float, turn_s: float) -> StepDone:
    return StepDone(
        t=number + 1.0,
        worker=worker,
        step=number,
        epoch=0,
        view=0,
        samples=1,
        start=number,
        stop=number + 1,
        compute_s=0.25,
        data_s=0.0,
        exchange_s=exchange_s,
        update_s=0.0,
        team=team,
        turn_s=turn_s,
    )


PLACED = Decision(
    t=0.0,
    what="place_shards",
    reason="the parameters are held by: shard 0 worker 0 (copy: worker 1)",
    numbers={},
)
OPENED = LogOpened(t=0.0, schema=1, run="r", source="coordinator", host="h", pid=1)
EVENTS: list[AnyEvent] = [
    OPENED,
    PLACED,
    *(
        applied(number, staleness)
        for number, staleness in enumerate([0, 1, 1, 1, 1, 2, 2, 2, 3, 9])
    ),
    applied(9, 4),  # told once more, or another one in its place
    voided(3, 8),
    voided(-1, 2),
    *(used(worker, epoch) for worker in (0, 1) for epoch in (0, 1)),
    *(step(number, 0, 0, exchange_s=0.75, turn_s=0.5) for number in range(8)),
]


def test_the_report_tells_staleness_drops_holders_and_waits_for_turns() -> None:
    summary = summarize(EVENTS)
    assert served_lines(summary.served) == [
        "parameter servers: 10 updates, staleness 1 (median), 3 (90 %), 4 (most)",
        "staleness: 0 in 10 %, 1 in 40 %, 2 in 30 %, 3 in 10 %, 4 in 10 %",
        "dropped because they were late: 1 update (8 samples, computed again)",
        "lost with a server: 1 update (2 samples, computed again)",
        "waited for turns: 4 s, all workers together",
        "moved between workers: 2,000 MB pushed, 0.004 MB pulled in 20 pulls and 2 fetches of rows",
        "held by: shard 0 worker 0 (copy: worker 1)",
    ]
    (spent,) = [worker.spent for worker in summary.workers]
    assert spent.wait_s == pytest.approx(2 * spent.exchange_s), "a turn is waited for"


def test_nothing_is_said_where_there_are_no_servers() -> None:
    assert summarize([OPENED]).served is None
    assert served_lines(None) == []


def test_many_values_of_staleness_become_ranges() -> None:
    assert staleness_bins(dict.fromkeys(range(16), 1)) == [
        ("0", 1 / 16),
        ("1", 1 / 16),
        ("2 to 3", 2 / 16),
        ("4 to 7", 4 / 16),
        ("8 to 15", 8 / 16),
    ]


def test_the_page_says_the_same_and_bills_the_waits() -> None:
    fold = Fold()
    for event in EVENTS:
        fold.add(event)
    fold.finish()
    document = run_document(fold, columns=Columns(), price=Price())
    assert document["served"]["lines"] == served_lines(summarize(EVENTS).served)
    (wait,) = [item for item in make_bill(Accounts(fold), Price()).items if item.kind == "wait"]
    assert wait.text.startswith("Waiting for a turn at the parameter servers took 44 %")


def test_nobody_in_a_team_is_blamed_for_its_turn() -> None:
    steps = [
        step(number, worker, 0, exchange_s=late_s, turn_s=0.5 if worker == 0 else 0.0)
        for number in range(8)
        for worker, late_s in ((0, 0.75), (1, 1.0))
    ]
    first, second = summarize(steps).workers
    assert first.caused_wait_s == pytest.approx(0.25 * first.num_steady_steps)
    assert second.caused_wait_s == 0
