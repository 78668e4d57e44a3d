# SPDX-License-Identifier: Apache-2.0
"""What those see who look on: the numbers of the logs, in bounded memory, and nobody waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest
from serving import DEADLINE_S, KEYS, ask, raw, serving

from gangline.coordinator.server import Driver
from gangline.coordinator.server.dashboard import feed as feed_module
from gangline.coordinator.server.dashboard import streaming
from gangline.coordinator.server.dashboard.feed import MAX_UNREAD, MAX_WATCHERS, TAKEN_AT_ONCE, Feed
from gangline.coordinator.server.dashboard.fold import Fold
from gangline.coordinator.server.dashboard.present import snapshot_of
from gangline.coordinator.server.dashboard.tail import BEGIN_BYTES, LogTail
from gangline.coordinator.server.dashboard.timeline import MAX_BUCKETS
from gangline.coordinator.settings import Settings
from gangline.eventlog import EventWriter, log_path
from gangline.protocol.status import Status, WorkerStatus
from gangline.spec.errors import UsageError
from gangline.spec.event import (
    Decision,
    GoalSet,
    Logged,
    RoundEnded,
    RunStarted,
    StepDone,
    StepsDone,
    Utilisation,
    ViewAdopted,
)
from gangline.spec.view import View

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


def step(worker: int, number: int, t: float, **changes: Any) -> StepDone:
    fields: dict[str, Any] = {
        "t": t, "worker": worker, "step": number, "epoch": 0, "view": 0, "samples": 10,
        "start": 0, "stop": 20, "compute_s": 0.1, "data_s": 0.0, "exchange_s": 0.1,
        "update_s": 0.05,
    }  # fmt: skip
    return StepDone(**{**fields, **changes})


def status(*workers: int, shares: tuple[int, ...] = (10, 10)) -> Status:
    return Status(
        run="r",
        expected_workers=2,
        workers=[
            WorkerStatus(worker=one, host="h", pid=1, is_connected=True, state="training")
            for one in workers
        ],
        view=View(number=3, members=(0, 1), shares=shares, reason=""),
        step=7,
        decisions=[],
    )


def test_a_snapshot_has_the_numbers_of_the_last_steps() -> None:
    fold = Fold()
    for number in range(10):
        fold.take([step(0, number, 100 + number / 4)])
        fold.take([step(1, number, 100 + number / 4, samples=30, compute_s=0.2, exchange_s=0.0)])
    fold.take([Utilisation(
        t=102, worker=1, cpu=1.5, node_cpu=0.5, memory_bytes=9, node_memory=0.1, threads=4,
        sent_bytes=0, received_bytes=0,
    )])  # fmt: skip
    found = snapshot_of(status(0, 1, 2), fold, now=102.5)
    zero, one, two = found.workers
    assert zero.samples_per_s == pytest.approx(10 / 0.25)
    assert zero.alone_per_s == pytest.approx(10 / 0.15)
    assert zero.wait == pytest.approx(0.1 / 0.25)  # worker 1 exchanges for 0 s
    assert (zero.busy, one.busy) == (pytest.approx(0.6), pytest.approx(1.0))
    assert found.samples_per_s == pytest.approx(10 / 0.25 + 30 / 0.25)
    assert found.parts_per_s == pytest.approx(10 / 0.15 + 30 / 0.25)
    assert (one.cpu, one.memory_bytes, zero.cpu) == (1.5, 9, None)
    assert not two.is_member
    assert two.samples_per_s is None
    assert (found.view, found.step, found.epoch) == (3, 7, 0)


def test_time_between_steps_counts() -> None:
    fold = Fold()
    for number in range(5):
        fold.take([step(0, number, 100.0 + number)])  # each takes a quarter of it
    (zero,) = snapshot_of(status(0), fold, now=104.0).workers
    assert zero.samples_per_s == pytest.approx(5 * 10 / 4.25)
    assert zero.busy == pytest.approx(5 * 0.15 / 4.25)
    assert zero.wait == pytest.approx(1 - 5 * 0.25 / 4.25)


def test_a_long_step_is_spread_over_its_time_and_a_pause_is_shown() -> None:
    fold = Fold()
    fold.take([step(0, 1, 104.0, samples=40, compute_s=3.85), step(0, 2, 120.0)])
    fold.take([step(0, 3, 140.0)])
    points = {one.t: one.samples_per_s for one in fold.timeline.moments()}
    assert [points[t] for t in (100.0, 101.0, 102.0, 103.0)] == pytest.approx([10.0] * 4)
    assert points[104.0] == points[118.0] == 0.0
    assert points[119.0] == pytest.approx(10.0)


def test_merges_are_counted_and_told_one_by_one_only_where_they_fail() -> None:
    fold = Fold()
    ended = RoundEnded(
        t=1, number=3, epoch=0, is_committed=True, is_whole=False, offsets={}, took_s=0.5,
        exchange_s=0.1, busy_s=0.2, drift=0.3, interval_s=1.0, sync="flexible", reason="",
    )  # fmt: skip
    failed = msgspec.structs.replace(ended, is_committed=False, number=4)
    fold.take([ended, failed])
    assert (fold.num_merges, fold.last_merge) == (1, ended)
    assert [feed_module.is_rare(one) for one in (ended, failed)] == [False, True]


def test_who_makes_no_steps_has_no_speed() -> None:
    fold = Fold()
    fold.take([step(0, 1, 100.0)])
    assert fold.lately(0, 104.0) is not None
    assert fold.lately(0, 120.0) is None


def test_a_slow_job_has_the_speed_of_its_last_step() -> None:
    fold = Fold()
    fold.take([step(0, 1, 100.0, compute_s=20.0, samples=40), step(0, 2, 120.0, compute_s=20.0)])
    found = fold.lately(0, 150.0)
    assert found is not None
    assert found.sums.steps == 1


def test_steps_that_were_summed_up_count_as_many() -> None:
    fold = Fold()
    fold.take([StepsDone(
        t=101, worker=0, step=5, steps=4, epoch=1, view=0, samples=40, start=0, stop=40,
        since=100, compute_s=0.4, data_s=0.0, exchange_s=0.4, update_s=0.2,
    )])  # fmt: skip
    found = snapshot_of(status(0), fold, now=101.5)
    assert found.workers[0].samples_per_s == pytest.approx(40)
    assert found.workers[0].compute_s == pytest.approx(0.1)
    (bar,) = found.bars
    assert (bar.step, bar.steps) == (5, 4)


def test_bars_tell_the_exchange_from_waiting_for_it() -> None:
    fold = Fold()
    fold.take([step(0, 1, 100.0, exchange_s=0.5), step(1, 1, 100.0, exchange_s=0.125)])
    first, second = fold.bars()
    assert (first.exchange_s, first.wait_s) == (0.125, 0.375)
    assert (second.exchange_s, second.wait_s) == (0.125, 0.0)


def test_loss_is_averaged_by_samples_and_shares_follow_views() -> None:
    fold = Fold()
    fold.take([
        ViewAdopted(t=100, view=0, step=0, members=[0, 1], shares=[3, 1], reason=""),
        Logged(t=100.1, worker=0, step=0, epoch=0, samples=3, values={"loss": 1.0}),
        Logged(t=100.2, worker=1, step=0, epoch=0, samples=1, values={"loss": 5.0, "x": None}),
        Logged(t=100.2, worker=1, step=0, epoch=0, samples=9, values={"loss": None}),
        step(0, 1, 110.0),
    ])  # fmt: skip
    first = fold.timeline.moments()[0]
    assert first.loss == pytest.approx(2.0)
    assert first.shares == {0: 3, 1: 1}
    assert fold.timeline.loss == pytest.approx(2.0)


def test_why_somebody_is_a_spare_is_the_last_decision_about_it() -> None:
    fold = Fold()
    fold.take([
        Decision(t=1, what="exclude", reason="too slow", numbers={"worker": 1.0}),
        Decision(t=2, what="publish_view", reason="a view", numbers={"worker": 1.0}),
        Decision(t=2, what="note", reason="of nobody", numbers={}),
    ])  # fmt: skip
    assert fold.why == {1: "too slow"}


def test_a_share_that_changes_is_a_decision_about_a_worker() -> None:
    fold = Fold()
    for number, shares in enumerate(((10.0, 30.0), (20.0, 20.0), (18.0, 20.0))):
        numbers = {"share_0": shares[0], "share_1": shares[1], "share_mean": 20.0}
        fold.take([Decision(t=number, what="publish_view", reason=f"{number}", numbers=numbers)])
    assert fold.why == {0: "2", 1: "1"}


def test_nodes_have_their_names_and_who_is_gone_uses_nothing() -> None:
    fold = Fold()
    started = RunStarted(
        t=1, command=[], workers=2, speeds=[1.0, 0.5], nodes=["n0", "n1"], scale=1.0
    )
    joined = msgspec.structs.replace(started, nodes=["x"], is_joining=True)
    used = Utilisation(
        t=2, worker=1, cpu=1.5, node_cpu=0.5, memory_bytes=9, node_memory=0.1, threads=4,
        sent_bytes=0, received_bytes=0,
    )  # fmt: skip
    fold.take([started, joined, GoalSet(t=2, worker=0, epochs=400), used])
    known = status(0, 1, 2)
    known.workers[1].is_connected = False
    found = snapshot_of(known, fold, now=3.0)
    assert [one.node for one in found.workers] == ["n0", "n1", ""]
    assert (found.workers[1].cpu, found.workers[1].memory_bytes) == (None, None)
    assert found.epochs == 400


def test_years_of_points_take_no_more_memory_than_minutes() -> None:
    fold = Fold()
    for number in range(5 * MAX_BUCKETS):
        fold.take([step(0, number, 1000.0 + number)])
    moments = fold.timeline.moments()
    assert MAX_BUCKETS / 3 < len(moments) <= MAX_BUCKETS
    assert [one.t for one in moments] == sorted(one.t for one in moments)
    assert moments[5].samples_per_s == pytest.approx(10)  # one step per second


def test_points_are_told_once() -> None:
    fold = Fold()
    fold.take([step(0, 0, 100.5), step(0, 1, 101.5), step(0, 2, 110.0)])
    assert [one.t for one in fold.timeline.take_moments()] == [100.0, 101.0]
    assert fold.timeline.take_moments() == []
    fold.take([step(0, 3, 120.0)])
    assert [one.t for one in fold.timeline.take_moments()] == [102.0, 108.0, 109.0]


def write(run_dir: Path, source: str, *events: Any) -> None:
    with EventWriter(log_path(run_dir, source), run="r", source=source) as log:
        for event in events:
            log.write(event)


def test_a_tail_reads_what_is_new_by_time_and_leaves_out_what_is_torn(tmp_path: Path) -> None:
    write(tmp_path, "worker 1", step(1, 0, 2.0))
    write(tmp_path, "worker 0", step(0, 0, 1.0), step(0, 1, 3.0))
    tail = LogTail(tmp_path)
    steps = [one for one in tail.read(BEGIN_BYTES) if isinstance(one, StepDone)]
    assert [(one.worker, one.t) for one in steps] == [(0, 1.0), (1, 2.0), (0, 3.0)]
    assert tail.read(BEGIN_BYTES) == []
    path = log_path(tmp_path, "worker 0")
    line = msgspec.json.encode(step(0, 2, 4.0)) + b"\n"
    with path.open("ab") as file:
        file.write(b"rubbish\n" + line[:30])
    assert tail.read(BEGIN_BYTES) == []
    with path.open("ab") as file:
        file.write(line[30:])
    assert [one.t for one in tail.read(BEGIN_BYTES)] == [4.0]


def test_a_tail_skips_what_is_too_much(tmp_path: Path) -> None:
    write(tmp_path, "worker 0", step(0, 0, 0.0))
    tail = LogTail(tmp_path)
    tail.read(BEGIN_BYTES)
    write(tmp_path, "worker 0", *(step(0, number, float(number)) for number in range(2000)))
    found = [one for one in tail.read(1) if isinstance(one, StepDone)]
    assert 0 < len(found) < 2000
    assert found[-1].step == 1999
    assert tail.skipped_bytes > 0


def test_what_grew_while_nobody_looked_is_not_what_a_page_cannot_follow(tmp_path: Path) -> None:
    write(tmp_path, "worker 0", step(0, 0, 0.0))
    tail = LogTail(tmp_path)
    tail.begin(BEGIN_BYTES)
    write(tmp_path, "worker 0", *(step(0, number, float(number)) for number in range(2000)))
    found = [one for one in tail.begin(1) if isinstance(one, StepDone)]
    assert 0 < len(found) < 2000
    assert found[-1].step == 1999
    assert tail.skipped_bytes == 0


def driver(run_dir: Path | None = None) -> Driver:
    return Driver(Settings(run="r", expected_workers=2), run_dir)


def kinds(lines: list[bytes]) -> list[str]:
    return [json.loads(line)["kind"] for line in lines]


def test_who_looks_is_told_what_was_and_then_what_happens(tmp_path: Path) -> None:
    reason = Decision(t=5, what="note", reason="why", numbers={})
    write(tmp_path, "worker 0", step(0, 0, 1.0), reason)

    async def look() -> None:
        feed = Feed(driver(tmp_path), interval_s=0.01)
        people = feed.follow(role="observer")
        programs = feed.follow(role="operator", wants_all=True)
        first = await anext(people)
        assert kinds(first) == ["history", "decision", "snapshot"]
        assert json.loads(first[0])["role"] == "observer"
        assert json.loads((await anext(programs))[0])["role"] == "operator"
        write(tmp_path, "worker 0", step(0, 1, 6.0), reason)
        seen: dict[str, set[str]] = {"people": set(), "programs": set()}
        for _ in range(20):
            seen["people"] |= {*kinds(await anext(people))}
            seen["programs"] |= {*kinds(await anext(programs))}
        assert seen["people"] == {"moments", "decision", "snapshot"}
        assert seen["programs"] >= {"step_done", "decision", "snapshot"}
        for one in (people, programs):
            await one.aclose()

    asyncio.run(look())


def test_who_comes_while_the_past_is_read_gets_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "worker 0", *(step(0, number, 100.0 + number) for number in range(20)))
    plain = LogTail.read

    def slowly(tail: LogTail, total: int) -> Any:
        time.sleep(0.1)
        return plain(tail, total)

    monkeypatch.setattr(LogTail, "read", slowly)

    async def look() -> None:
        feed = Feed(driver(tmp_path), interval_s=0.01)
        both = [feed.follow(role="observer") for _ in range(2)]
        found = [json.loads(lines[0]) for lines in await asyncio.gather(*map(anext, both))]
        assert len(found[0]["moments"]) > 10
        assert found[1]["moments"] == found[0]["moments"]
        for one in both:
            await one.aclose()

    asyncio.run(look())


def test_the_past_is_read_once_though_the_first_to_look_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "worker 0", *(step(0, number, 100.0 + number) for number in range(20)))
    plain = LogTail.read

    def slowly(tail: LogTail, total: int) -> Any:
        events = plain(tail, total)
        time.sleep(0.1)
        return events

    monkeypatch.setattr(LogTail, "read", slowly)

    async def look() -> None:
        feed = Feed(driver(tmp_path), interval_s=0.01)
        first, second = feed.follow(role="observer"), feed.follow(role="observer")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(first), 0.02)
        assert len(json.loads((await anext(second))[0])["moments"]) > 10
        await second.aclose()

    asyncio.run(look())


def test_events_are_taken_in_where_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "worker 0", *(step(0, number, float(number)) for number in range(1200)))
    taken: list[tuple[int, threading.Thread]] = []

    def take(fold: Fold, events: list[Any]) -> None:
        taken.append((len(events), threading.current_thread()))

    monkeypatch.setattr(Fold, "take", take)

    async def look() -> None:
        people = Feed(driver(tmp_path), interval_s=0.01).follow(role="observer")
        await anext(people)
        await people.aclose()

    asyncio.run(look())
    assert [count for count, _ in taken][:2] == [TAKEN_AT_ONCE, TAKEN_AT_ONCE]
    assert {thread for _, thread in taken} == {threading.current_thread()}


def test_who_does_not_read_is_dropped_and_the_others_are_not() -> None:
    async def look() -> None:
        feed = Feed(driver(), interval_s=0.001)
        slow, quick = feed.follow(role="observer"), feed.follow(role="observer")
        await anext(slow)
        await anext(quick)
        for _ in range(3 * MAX_UNREAD):
            await anext(quick)
        with pytest.raises(StopAsyncIteration):
            await anext(slow)
        await anext(quick)
        await quick.aclose()

    asyncio.run(look())


def test_only_so_many_look_and_nothing_is_read_while_nobody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = []
    monkeypatch.setattr(feed_module.LogTail, "read", lambda self, total: reads.append(total) or [])

    async def look() -> None:
        feed = Feed(driver(), interval_s=0.001)
        all_of_them = [feed.follow(role="observer") for _ in range(MAX_WATCHERS)]
        for one in all_of_them:
            await anext(one)
        with pytest.raises(UsageError, match="look on already"):
            await anext(feed.follow(role="observer"))
        for one in all_of_them:
            await one.aclose()
        await asyncio.sleep(0.05)
        before = len(reads)
        await asyncio.sleep(0.05)
        assert len(reads) == before

    asyncio.run(look())


def test_programs_get_lines_of_json_and_the_server_ends_while_they_listen() -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving())
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=20))
        url = server.url.replace("ws", "http", 1) + "/api/events/stream?steps=no"
        headers = {"Authorization": f"Bearer {KEYS.observer}"}
        answer = stack.enter_context(client.stream("GET", url, headers=headers))
        lines = answer.iter_lines()
        assert json.loads(next(lines))["kind"] == "history"
        assert json.loads(next(lines))["run"] == "test"
        server.stop()
        for line in lines:
            json.loads(line)


def test_who_never_reads_a_stream_is_dropped_with_all_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_closed = threading.Event()

    async def follow(feed: Feed, **_: Any) -> AsyncGenerator[list[bytes]]:
        try:
            while True:
                yield [b"x" * (1 << 20)]
        finally:
            is_closed.set()

    monkeypatch.setattr(streaming, "UNREAD_S", 0.2)
    monkeypatch.setattr(Feed, "follow", follow)
    with serving() as server:
        token = f"Authorization: Bearer {KEYS.observer}"
        request = f"GET /api/events/stream HTTP/1.1\r\nHost: x\r\n{token}\r\n\r\n"
        with raw(server, request.encode()):
            assert is_closed.wait(DEADLINE_S)
            until_s = time.monotonic() + DEADLINE_S
            while server.entrance._known and time.monotonic() < until_s:
                time.sleep(0.05)
            assert not server.entrance._known


def test_the_status_says_how_groups_are_held_together() -> None:
    with serving() as server:
        assert ask(server, "/api/status", KEYS.observer).json()["sync"] == "full"
