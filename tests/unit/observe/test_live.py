# SPDX-License-Identifier: Apache-2.0
"""A run while it goes on: what its logs say, folded as they grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gangline.cli.run.liveline import LiveFeed, describe, duration
from gangline.eventlog import EventWriter, events_dir, log_path
from gangline.observe.live.curves import SETTLED_S, Curves
from gangline.observe.live.follower import RunFollower
from gangline.observe.live.standing import LiveRun
from gangline.spec.event import (
    Decision,
    Event,
    GoalSet,
    Logged,
    StepDone,
    StepsDone,
    ViewAdopted,
    WorkerEnded,
    WorkerReady,
)

if TYPE_CHECKING:
    from pathlib import Path


def step(number: int, t: float, *, worker: int = 0, samples: int = 8, **fields: Any) -> StepDone:
    given = {"epoch": 0, "view": 0, "start": number * 32, "stop": number * 32 + 32, **fields}
    return StepDone(
        t=t, worker=worker, step=number, samples=samples, compute_s=0.02, data_s=0.0,
        exchange_s=0.01, update_s=0.0, **given,
    )  # fmt: skip


def view(members: list[int], number: int = 0, **fields: Any) -> ViewAdopted:
    shares = fields.pop("shares", [32 // len(members)] * len(members))
    return ViewAdopted(
        t=0.0, view=number, step=0, members=members, shares=shares, reason="given", **fields
    )


def logged(number: int, value: float | None, **fields: Any) -> Logged:
    given = {"t": float(number), "worker": 0, "epoch": 0, "samples": 8, "view": 0, **fields}
    return Logged(step=number, values={"loss": value}, **given)


def told(*events: Event) -> str:
    run = LiveRun()
    for event in events:
        run.note(event)
    standing = run.standing()
    return "starting" if standing is None else describe(standing)


# --- the line ---------------------------------------------------------------------------------------


def test_it_says_where_the_job_is_how_fast_and_how_well() -> None:
    steps = [
        step(number, 100 + 0.05 * number, worker=worker, samples=samples)
        for number in range(3)
        for worker, samples in ((0, 8), (1, 24))
    ]
    assert told() == "starting"
    assert told(view([0, 1]), steps[0]) == "epoch 0  step 0  2 workers"
    # Both compute for 20 ms in steps of 50 ms: 32 samples in 20 ms at best.
    assert told(view([0, 1]), *steps) == "epoch 0  step 2  640 samples/s  40% efficient  2 workers"


def test_it_says_what_is_left_and_what_was_decided() -> None:
    events: list[Event] = [
        WorkerReady(
            t=0, worker=0, device="cpu", threads=1, torch="2", parameters=1, transport="",
            samples_per_epoch=320,
        ),
        GoalSet(t=0, worker=0, epochs=10),
        view([0], shares=[32]),
        *(step(number, 100 + number, samples=32) for number in range(5)),
        logged(4, 0.12345, t=104.0),
        Decision(t=98.0, what="hint", reason="because \x1b[31m", numbers={}),
    ]  # fmt: skip
    line = told(*events)
    assert line == (
        "epoch 1/10  step 4  32 samples/s  2% efficient  loss 0.1235  1 worker  1 min 35 s left  "
        "6 s ago: because ?[31m"
    )


def test_a_goal_of_steps_is_counted_in_steps() -> None:
    line = told(GoalSet(t=0, worker=0, steps=100), *(step(n, 2.0 * n) for n in range(3)))
    assert line == "epoch 0  step 2  16 samples/s  3 min 14 s left"


def test_a_pause_has_a_name_and_is_part_of_no_pace() -> None:
    def said(what: str, t: float) -> Decision:
        return Decision(t=t, what=what, reason="", numbers={})

    events = [GoalSet(t=0, worker=0, steps=100), *(step(n, 2.0 * n) for n in range(3))]
    events += [said("pause", 4.5)]
    assert told(*events) == "epoch 0  step 2  paused"
    events += [said("resume_steps", 60.0), step(3, 62.0)]
    assert told(*events) == "epoch 0  step 3"
    assert told(*events, step(4, 64.0)) == "epoch 0  step 4  16 samples/s  3 min 10 s left"


def test_who_is_out_is_named() -> None:
    line = told(view([0, 1, 2]), step(0, 1.0), view([0, 2], 1))
    assert line == "epoch 0  step 0  in: 0, 2  out: 1"
    line = told(view(list(range(32))), view(list(range(30)), 1), step(0, 1.0))
    assert line.endswith("30 of 32 workers")


def test_teams_add_up_and_nobody_is_missing() -> None:
    teams = [view([0], 0, team=0, whole=2, shares=[8]), view([1], 0, team=1, whole=2, shares=[8])]
    steps = [
        step(
            number, float(number), worker=worker, team=worker, start=8 * number, stop=8 * number + 8
        )
        for number in range(3)
        for worker in (0, 1)
    ]
    line = told(view([0, 1]), *teams, *steps, GoalSet(t=0, worker=0, epochs=3))
    assert line == "epoch 1/3  step 2  16 samples/s  2% efficient  2 workers in 2 teams"


def test_a_team_that_was_parted_counts_no_more() -> None:
    def parted(number: int, worker: int) -> StepDone:
        place = {"start": 8 * number, "stop": 8 * number + 8}
        return step(number, 10.0 + number, worker=worker, team=worker + 1, **place)

    whole = [step(n, float(n), worker=worker) for n in range(3) for worker in range(3)]
    ended = WorkerEnded(t=2.5, worker=2, exit_code=None, signal="SIGKILL", reason="killed")
    # All are in the last view of the team that parts, and then in one of their own.
    views = [view([0, 1], 1, whole=2), *(view([w], 0, team=w + 1, whole=2) for w in (0, 1))]
    steps = [parted(number, worker) for number in range(3) for worker in (0, 1)]
    events = [view([0, 1, 2]), *whole, ended, *views, *steps]
    assert told(*events).endswith("16 samples/s  2% efficient  in: 0, 1 in 2 teams  out: 2")
    killed = WorkerEnded(t=12.5, worker=1, exit_code=None, signal="SIGKILL", reason="killed")
    line = told(*events, killed, parted(3, 0))
    assert "8 samples/s" in line
    assert "in: 0  out: 1, 2" in line
    assert "2 teams" in told(*events, killed), "at the end of a run nobody is left"


def test_steps_that_are_summed_up_count_as_many() -> None:
    many = StepsDone(
        t=20.0, worker=0, step=1, steps=10, epoch=0, view=0, samples=320, start=32, stop=352,
        since=10.0, compute_s=1.0, data_s=0, exchange_s=0, update_s=0,
    )  # fmt: skip
    assert told(step(0, 10.0), many) == "epoch 0  step 10  32 samples/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min 01 s"), (3700, "1 h 01 min"), (90000, "1 d 1 h")],
)
def test_time_spans(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- what scripts log -------------------------------------------------------------------------------


def test_curves_are_means_by_samples_in_the_order_of_steps() -> None:
    curves = Curves()
    curves.note(logged(1, 4.0, worker=1, samples=24))
    curves.note(logged(0, 1.0))
    curves.note(logged(1, 8.0))
    found = curves.take(is_final=True)
    assert [(one.step, one.values) for one in found] == [(0, {"loss": 1.0}), (1, {"loss": 5.0})]
    assert curves.take(is_final=True) == []


def test_a_step_is_given_when_no_worker_is_expected_to_say_more() -> None:
    curves = Curves()
    curves.note(logged(0, 1.0, t=10.0))
    assert curves.take() == []
    curves.note(logged(9, 2.0, t=10.0 + SETTLED_S))
    assert [one.step for one in curves.take()] == [0]


def test_what_was_logged_in_an_older_view_of_a_step_is_void() -> None:
    curves = Curves()
    curves.note(logged(3, 100.0, worker=2))
    curves.note(logged(3, 2.0, view=1))
    curves.note(logged(3, 100.0, worker=1))
    assert [one.values for one in curves.take(is_final=True)] == [{"loss": 2.0}]


def test_what_is_not_finite_is_no_point_of_a_curve() -> None:
    curves = Curves()
    curves.note(logged(0, None))
    assert curves.newest() == {"loss": None}
    assert curves.take(is_final=True) == []


# --- following --------------------------------------------------------------------------------------


def test_logs_are_followed_as_they_grow_and_old_events_left_out(tmp_path: Path) -> None:
    def writer(name: str) -> EventWriter:
        return EventWriter(log_path(tmp_path, name), run="r", source=name)

    with writer("worker 0") as old:
        old.write(step(0, 1.0))
    follower = RunFollower(tmp_path)
    with writer("worker 0") as again, writer("worker 1") as new:
        again.write(step(2, 3.0))
        new.write(step(1, 2.0, worker=1))
    found = [event for event in follower.take() if isinstance(event, StepDone)]
    assert [event.step for event in found] == [1, 2]
    assert follower.take() == []


def test_a_log_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    feed = LiveFeed(tmp_path)
    feed.refresh()
    assert feed.line() == "starting"
    events_dir(tmp_path).mkdir()
    (events_dir(tmp_path) / "worker-1.jsonl").write_text("not json\n")
    with EventWriter(log_path(tmp_path, "worker 0"), run="r", source="worker 0") as log:
        log.write(step(7, 1.0))
        log.flush()
        feed.refresh()
    assert feed.line() == "epoch 0  step 7"
