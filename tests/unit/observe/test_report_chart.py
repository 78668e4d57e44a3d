# SPDX-License-Identifier: Apache-2.0
"""The chart and the trace of a run."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import SyntheticRun, step_done

from gangline.observe import Bar, draw_bars, summarize, to_trace, worker_bars
from gangline.spec.event import Decision, WorkerEnded


def test_the_chart_shows_busy_and_waiting_in_proportion() -> None:
    run = SyntheticRun([0.01, 0.02], exchange_s=0.0, update_s=0.0).run_steps(20, shares=[8, 8])
    chart = draw_bars(worker_bars(summarize(run.events)), width=20)
    assert chart.splitlines() == [
        "n0 (worker 0)  ██████████░░░░░░░░░░  busy 50 %, waiting 50 %",
        "n1 (worker 1)  ████████████████████  busy 100 %, waiting 0 %",
        "               █ busy  ▒ exchanging  ░ waiting  · other",
    ]


def test_the_chart_is_empty_when_there_is_nothing_to_draw() -> None:
    assert draw_bars([]) == ""
    assert draw_bars([Bar(label="idle", busy=0.0)]) == ""


def test_a_bar_is_short_and_its_label_cut_when_they_have_to_be() -> None:
    chart = draw_bars(
        [
            Bar(label="a" * 40, busy=1.0, other=1.0),
            Bar(label="b", busy=0.0),
            Bar(label="c", busy=4.0),
        ],
        width=8,
    )
    first, second, *_ = chart.splitlines()
    assert first == "a" * 23 + "…  ██··      busy 50 %, waiting 0 %"
    assert second == "b"


PARTS = st.floats(0, 1e6)


@given(bars=st.lists(st.builds(Bar, label=st.just("x"), busy=PARTS, waiting=PARTS, other=PARTS)))
def test_no_bar_is_wider_than_asked(bars: list[Bar]) -> None:
    for line in draw_bars(bars, width=10).splitlines()[:-1]:
        assert sum(line.count(mark) for mark in "█▒░·") <= 10


def test_the_trace_has_the_parts_of_each_step_end_to_end() -> None:
    run = SyntheticRun([0.01, 0.02], data_s=0.003).run_steps(2, shares=[8, 8])
    spans = [e for e in to_trace(run.events)["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
    names = ["data", "compute", "wait", "exchange", "update"]
    assert [span["name"] for span in spans] == names * 2
    for before, after in itertools.pairwise(spans):
        assert abs(before["ts"] + before["dur"] - after["ts"]) < 1
    assert spans[0]["ts"] >= 0
    assert abs(spans[1]["dur"] - 80_000) < 1


def test_the_trace_names_workers_and_marks_decisions() -> None:
    run = SyntheticRun([0.01]).run_steps(1, shares=[8], reason="equal")
    run.events += [
        Decision(t=run.now, what="evict", reason="slow", numbers={}),
        WorkerEnded(t=run.now, worker=0, exit_code=0, signal=None, reason="done"),
    ]
    events = to_trace(run.events)["traceEvents"]
    assert events[0]["args"] == {"name": "worker 0 (n0)"}
    marks = {e["name"]: e["args"] for e in events if e["ph"] == "i"}
    assert marks == {
        "view 0": {"reason": "equal", "shares": [8]},
        "evict": {"reason": "slow"},
        "worker 0 ended": {"reason": "done"},
    }


def test_the_trace_starts_at_zero_when_the_log_begins_with_a_step() -> None:
    events = to_trace([step_done()])["traceEvents"]
    assert min(e["ts"] for e in events if e["ph"] == "X") == 0
