# SPDX-License-Identifier: Apache-2.0
"""The event logs of other machines: kept once each, of their own workers, and nothing else."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.coordinator.server.events import streams as streams_module
from gangline.coordinator.server.events.streams import NoRoomError, Streams, TooFastError
from gangline.coordinator.server.limits import Limits
from gangline.eventlog import LogNotes, events_dir, read_events, read_run
from gangline.eventlog.lines import encode_line
from gangline.protocol.streaming import LAUNCHER, Chunk, EventsAnswer, EventsRequest, machine_name
from gangline.spec.errors import UsageError
from gangline.spec.event import (
    Decision,
    EpochDone,
    Event,
    EventsLost,
    LogOpened,
    RunEnded,
    RunStarted,
    WorkerEnded,
)

KEY, OTHER = "the key of a machine", "the key of another"
BROUGHT = {3: machine_name(KEY), 4: machine_name(KEY), 5: machine_name(OTHER)}


def opened(worker: int = 3, **changes: Any) -> bytes:
    source = "launcher" if worker == LAUNCHER else f"worker {worker}"
    fields = {"t": 1.0, "schema": 1, "run": "r", "source": source, "host": "there", "pid": 7}
    return encode_line(LogOpened(**{**fields, **changes}))


def epoch(number: int, worker: int = 3, t: float = 2.0) -> bytes:
    return encode_line(EpochDone(t=t, worker=worker, epoch=number, step=number, samples=8))


class Desk:
    """A coordinator's streams, and a machine that sends."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        events_dir(folder).mkdir(exist_ok=True)
        self.folder = folder
        self.now = 0.0
        self.told: list[Any] = []
        self.streams = Streams(
            folder,
            run="r",
            machine_of=lambda worker: BROUGHT.get(worker, ""),
            limits=Limits(**limits),
            tell=self.told.append,
            clock=lambda: self.now,
        )

    def send(
        self, data: bytes, worker: int = 3, offset: int = 0, key: str = KEY, **more: Any
    ) -> EventsAnswer:
        skipped = more.pop("skipped", 0)
        chunk = Chunk(worker=worker, offset=offset, data=data, skipped=skipped)
        return self.streams.take(EventsRequest(key=key, chunks=(chunk,), **more))

    def kept(self, name: str = "worker-3.jsonl") -> bytes:
        return (events_dir(self.folder) / name).read_bytes()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_what_is_sent_is_kept_in_the_form_that_readers_read(desk: Desk) -> None:
    first, second = opened() + epoch(0), epoch(1)
    assert desk.send(first).received == {3: len(first)}
    assert desk.send(second, offset=len(first)).received == {3: len(first + second)}
    assert desk.kept() == first + second
    assert [event.epoch for event in read_run(desk.folder) if isinstance(event, EpochDone)] == [
        0,
        1,
    ]


def test_what_is_sent_again_is_not_kept_twice(desk: Desk) -> None:
    first = opened() + epoch(0)
    desk.send(first)
    assert desk.send(first).received == {3: len(first)}
    assert desk.send(epoch(9), offset=len(first) + 1).received == {3: len(first)}, "a hole"
    assert desk.kept() == first


def test_half_a_line_is_not_taken(desk: Desk) -> None:
    line = opened()
    assert desk.send(line + epoch(0)[:20]).received == {3: len(line)}
    assert desk.kept() == line


def test_a_coordinator_that_is_started_again_goes_on(tmp_path: Path) -> None:
    first, second = opened() + epoch(0), epoch(1)
    Desk(tmp_path).send(first)
    again = Desk(tmp_path)
    again.send(second, offset=len(first))
    assert again.kept() == first + second


def test_what_a_killed_coordinator_wrote_and_did_not_confirm_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = opened() + epoch(0), epoch(1)
    desk = Desk(tmp_path)
    desk.send(first)

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(desk.streams, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        desk.send(second, offset=len(first))
    assert desk.kept() == first + second, "the log was written, and nobody was told"
    again = Desk(tmp_path)
    assert again.send(b"", offset=0).received == {3: len(first)}
    again.send(second, offset=len(first))
    assert again.kept() == first + second


def test_a_copy_that_somebody_has_cut_is_written_anew(desk: Desk) -> None:
    first = opened() + epoch(0)
    desk.send(first)
    os.truncate(events_dir(desk.folder) / "worker-3.jsonl", 5)
    with pytest.raises(NoRoomError, match="shorter"):
        desk.send(epoch(1), offset=len(first))
    assert desk.send(epoch(1), offset=len(first)).received == {3: 0}
    desk.send(first + epoch(1))
    assert desk.kept() == first + epoch(1)


# --- who may write what ---------------------------------------------------------------------------


def test_a_machine_writes_for_its_own_workers_only(desk: Desk) -> None:
    assert desk.send(opened(5), worker=5).received == {}, "nobody whom it brought"
    desk.send(opened())
    assert desk.send(opened(5), worker=5).received == {3: len(opened())}
    assert desk.send(opened(9), worker=9).received == {3: len(opened())}, "nobody at all"
    assert sorted(path.name for path in events_dir(desk.folder).glob("*.jsonl")) == [
        "worker-3.jsonl"
    ]


def test_nothing_is_remembered_of_a_machine_that_brought_nobody(desk: Desk) -> None:
    for number in range(50):
        answer = desk.send(opened(LAUNCHER), worker=LAUNCHER, key=f"stranger {number}")
        assert answer.received == {}
    assert not list(events_dir(desk.folder).iterdir())
    assert desk.streams.num_sending == 0


@pytest.mark.parametrize("worker", [-2, 1 << 40, 3000])
def test_a_number_of_nobody_names_no_file(desk: Desk, worker: int) -> None:
    desk.send(opened())
    before = sorted(events_dir(desk.folder).iterdir())
    desk.send(opened(worker), worker=worker)
    assert sorted(events_dir(desk.folder).iterdir()) == before


def test_a_log_that_is_there_already_is_not_written_to(desk: Desk) -> None:
    own = events_dir(desk.folder) / "worker-3.jsonl"
    own.write_bytes(opened(host="here"))
    desk.send(opened())
    assert own.read_bytes() == opened(host="here")
    assert desk.kept(f"worker-3-{machine_name(KEY)}.jsonl") == opened()


@pytest.mark.parametrize(
    "line",
    [
        epoch(1, worker=5),
        b"not json\n",
        b"\n",
        b"[1]\n",
        b'{"kind":"epoch_done","t":1}\n',
        b"\xff\xfe\n",
        b'{"kind":"from the future","t":1.0,"worker":5}\n',
        opened(5),
        opened(schema=99),
        opened(run="another"),
        encode_line(RunEnded(t=1.0, status="failed", reason="", wall_s=1.0, is_joining=True)),
        encode_line(WorkerEnded(t=1.0, worker=3, exit_code=1, signal=None, reason="")),
        encode_line(EventsLost(t=1.0, source="worker 5", count=1, reason="")),
        encode_line(
            Decision(t=1.0, what="exclude", reason="worker 0 lies", numbers={"worker": 3.0})
        ),
        encode_line(Decision(t=1.0, what="leave", reason="", numbers={"worker": 0.0})),
        b'{"kind":"decision","t":1.0,"what":"leave","reason":"","numbers":{"worker":1e308}}\n',
    ],
)
def test_a_line_that_has_no_place_in_a_log_is_left_out_and_counted(desk: Desk, line: bytes) -> None:
    data = opened() + line + epoch(0)
    assert desk.send(data).received == {3: len(data)}
    events = list(read_events(events_dir(desk.folder) / "worker-3.jsonl"))
    assert [type(event) for event in events] == [LogOpened, EpochDone, EventsLost]
    assert isinstance(events[2], EventsLost)
    assert (events[2].count, events[2].source) == (1, "worker 3")


def test_an_event_of_a_newer_version_is_kept(desk: Desk) -> None:
    data = opened() + b'{"kind":"from the future","t":1.0,"worker":3}\n'
    desk.send(data)
    assert desk.kept() == data


def test_a_log_begins_with_who_writes_it(desk: Desk) -> None:
    data = epoch(0) + opened() + epoch(1)
    desk.send(data)
    kinds = [type(event) for event in read_events(events_dir(desk.folder) / "worker-3.jsonl")]
    assert kinds == [LogOpened, EpochDone, EventsLost]


@pytest.mark.parametrize(
    ("event", "is_kept"),
    [
        (RunStarted(t=1, command=[], workers=1, nodes=["x"], speeds=[1], scale=1), False),
        (RunEnded(t=1, status="failed", reason="", wall_s=1), False),
        (RunEnded(t=1, status="failed", reason="", wall_s=1, is_joining=True), True),
        (WorkerEnded(t=1, worker=4, exit_code=0, signal=None, reason=""), True),
        (WorkerEnded(t=1, worker=5, exit_code=0, signal=None, reason=""), False),
        (WorkerEnded(t=1, worker=-1, exit_code=0, signal=None, reason=""), False),
        (EpochDone(t=1, worker=-1, epoch=1, step=1, samples=1), False),
        (Decision(t=1, what="never_joined", reason="", numbers={}), True),
        (Decision(t=1, what="take_back", reason="", numbers={}), False),
    ],
)
def test_a_launcher_speaks_for_its_own_machine(desk: Desk, event: Event, is_kept: bool) -> None:
    desk.send(opened())
    desk.send(opened(LAUNCHER) + encode_line(event), worker=LAUNCHER)
    kept = desk.kept(f"launcher-{machine_name(KEY)}.jsonl")
    assert (encode_line(event) in kept) == is_kept


GOOD = (opened(), epoch(0), epoch(1), epoch(2, worker=5), opened(5), b"{}\n", b"\n", b"x\r\n")


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(GOOD) | st.binary(max_size=60), st.integers(-3, 6)), max_size=12
    ),
    st.floats(-100, 100),
)
def test_whatever_is_sent_can_be_read(pieces: list[tuple[bytes, int]], ahead_s: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        desk = Desk(Path(name))
        received: dict[int, int] = {}
        for data, worker in pieces:
            offset = received.get(worker, 0)
            received = desk.send(data, worker, offset, ahead_s=ahead_s).received
            assert received.get(worker, 0) <= offset + len(data)
        for path in events_dir(desk.folder).glob("*.jsonl"):
            for event in read_events(path, notes=LogNotes(path="")):
                assert getattr(event, "worker", 3) in (3, 4)


# --- too much -------------------------------------------------------------------------------------


def test_a_flood_of_rubbish_leaves_a_few_lines(desk: Desk) -> None:
    desk.send(opened())
    offset, rubbish = len(opened()), b"x\n" * 500
    for _ in range(200):
        offset = desk.send(rubbish, offset=offset).received[3]
    events = list(read_events(events_dir(desk.folder) / "worker-3.jsonl"))
    assert len(events) < 12
    assert sum(one.count for one in events if isinstance(one, EventsLost)) >= 50_000


def test_who_sends_too_much_at_once_is_told_to_wait(tmp_path: Path) -> None:
    desk = Desk(tmp_path, log_bytes_per_s=1000, log_burst_bytes=500)
    first = opened() + epoch(0) * 10
    desk.send(first)
    with pytest.raises(TooFastError, match="per second"):
        desk.send(epoch(1), offset=len(first))
    desk.now += 2.0
    assert desk.send(epoch(1), offset=len(first)).received == {3: len(first + epoch(1))}


def test_what_is_beyond_the_limit_of_a_machine_is_left_out(tmp_path: Path) -> None:
    desk = Desk(tmp_path, log_bytes=1000)
    offset = desk.send(opened()).received[3]
    for number in range(100):
        offset = desk.send(epoch(number), offset=offset).received[3]
    assert len(desk.kept()) < 3000
    events = list(read_events(events_dir(desk.folder) / "worker-3.jsonl"))
    assert any(isinstance(event, EventsLost) for event in events)


def test_a_line_that_was_too_long_to_be_sent_is_counted(desk: Desk) -> None:
    answer = desk.send(opened(), skipped=100_000)
    assert answer.received == {3: len(opened()) + 100_000}
    assert isinstance(list(read_events(events_dir(desk.folder) / "worker-3.jsonl"))[1], EventsLost)


def test_a_full_disk_is_said_and_nothing_is_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = opened() + epoch(0), epoch(1)
    desk.send(first)
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 10:
            return write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(streams_module.os, "write", full)
        for _ in range(3):
            with pytest.raises(NoRoomError, match="No space left"):
                desk.send(second, offset=len(first))
    assert caplog.text.count("No space left") == 1
    assert desk.kept() == first
    desk.send(second, offset=len(first))
    assert desk.kept() == first + second
    assert [one.what for one in desk.told] == ["refuse_logs", "take_logs"]
    assert "(No space left on device): they are kept there" in desk.told[0].reason


def test_room_is_left_for_what_the_job_needs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "RESERVE_BYTES", 1 << 62)
    with pytest.raises(NoRoomError, match="nearly full"):
        desk.send(opened())


def test_a_coordinator_without_a_folder_says_so() -> None:
    streams = Streams(
        None, run="r", machine_of=lambda worker: "", limits=Limits(), tell=lambda event: None
    )
    with pytest.raises(UsageError, match="no run folder"):
        streams.take(EventsRequest(key=KEY))


# --- clocks and ends ------------------------------------------------------------------------------


def test_the_times_of_another_machine_are_read_by_our_clock(desk: Desk) -> None:
    (events_dir(desk.folder) / "worker-0.jsonl").write_bytes(opened(0) + epoch(0, worker=0, t=50.0))
    data = opened(t=1001.0) + epoch(0, t=1049.0) + epoch(1, t=1051.0)
    desk.send(data, ahead_s=-1000.0)
    found = [(one.worker, one.t) for one in read_run(desk.folder) if isinstance(one, EpochDone)]
    assert found == [(3, 49.0), (0, 50.0), (3, 51.0)]


def test_a_clock_that_is_set_is_followed(desk: Desk) -> None:
    first = opened(t=10.0) + epoch(0, t=11.0)
    desk.send(first, ahead_s=0.01)
    desk.send(epoch(1, t=2.0), offset=len(first), ahead_s=10.0)
    found = [one.t for one in read_run(desk.folder) if isinstance(one, EpochDone)]
    assert found == [11.0, 12.0]


def test_no_clock_is_off_by_thousands_of_years(desk: Desk) -> None:
    with pytest.raises(UsageError, match="ahead_s"):
        desk.send(opened(), ahead_s=1e300)


def test_machines_are_waited_for_that_have_more_to_send(desk: Desk) -> None:
    desk.send(opened())
    assert desk.streams.num_sending == 1
    desk.send(b"", is_last=True)
    assert desk.streams.num_sending == 0
    desk.send(b"")
    assert desk.streams.num_sending == 1
    desk.now += 60.0
    assert desk.streams.num_sending == 0, "it was not heard for long"


def test_what_is_on_the_disk_may_be_anything(desk: Desk) -> None:
    (events_dir(desk.folder) / f"{machine_name(KEY)}.json").write_bytes(b"\xff")
    assert desk.send(opened()).received == {3: len(opened())}


def test_answers_can_be_sent() -> None:
    answer = EventsAnswer(now=1.0, received={LAUNCHER: 3, 7: 4})
    assert msgspec.json.decode(msgspec.json.encode(answer), type=EventsAnswer) == answer
