# SPDX-License-Identifier: Apache-2.0
"""A launcher sends its workers' event logs: all of them, once, whatever breaks meanwhile."""

from __future__ import annotations

import contextlib
import random
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from serving import KEYS, ask, hello, open_line, until

from gangline.coordinator.server import CoordinatorServer, Driver
from gangline.coordinator.server.events.streams import Streams
from gangline.coordinator.server.limits import Limits
from gangline.coordinator.settings import Settings
from gangline.engines.job import Job
from gangline.engines.streaming import stream as streaming
from gangline.engines.streaming.sentfiles import SentFiles
from gangline.engines.streaming.stream import EventStream, Refusal, Sender
from gangline.eventlog import EventWriter, events_dir, log_path, read_run
from gangline.eventlog.lines import encode_line
from gangline.protocol.streaming import (
    LAUNCHER,
    MAX_SENT_BYTES,
    Chunk,
    EventsAnswer,
    EventsRequest,
    machine_name,
)
from gangline.spec.config import RunConfig
from gangline.spec.event import Decision, EpochDone, EventsLost, LogOpened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEY = "the key of this machine"


def write_log(folder: Path, worker: int, count: int, *, start: int = 0) -> None:
    source = "launcher" if worker == LAUNCHER else f"worker {worker}"
    with EventWriter(log_path(folder, source), run="test", source=source) as log:
        for number in range(start, start + count):
            if worker == LAUNCHER:
                log.write(Decision(t=time.time(), what="notice", reason=str(number), numbers={}))
            else:
                log.write(EpochDone(t=time.time(), worker=worker, epoch=number, step=1, samples=1))


def copies_are_whole(here: Path, there: Path, workers: tuple[int, ...]) -> None:
    for worker in workers:
        name = f"worker-{worker}.jsonl"
        assert (events_dir(there) / name).read_bytes() == (events_dir(here) / name).read_bytes()
    own = (events_dir(here) / "launcher.jsonl").read_bytes()
    assert (events_dir(there) / f"launcher-{machine_name(KEY)}.jsonl").read_bytes() == own


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    events_dir(tmp_path / "there").mkdir(parents=True)
    return tmp_path / "there"


# --- what is to be sent ---------------------------------------------------------------------------


def test_only_whole_lines_are_sent_and_each_once(here: Path) -> None:
    write_log(here, 3, 2)
    path = log_path(here, "worker 3")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":')
    files = SentFiles(here)
    (chunk,) = files.next_chunks()
    assert (chunk.worker, chunk.offset, chunk.data) == (3, 0, whole)
    files.note({3: len(whole)})
    assert files.next_chunks() == ()


def test_a_launcher_alone_has_nothing_to_tell(here: Path) -> None:
    write_log(here, LAUNCHER, 2)
    files = SentFiles(here)
    assert (files.next_chunks(), files.num_unsent(), files.has_workers) == ((), 0, False)


def test_a_request_has_its_limit_and_every_log_its_turn(here: Path) -> None:
    for worker in (3, 4):
        write_log(here, worker, 1500)
    files = SentFiles(here)
    seen = set()
    for _ in range(3):
        chunks = files.next_chunks()
        assert sum(len(chunk.data) for chunk in chunks) <= MAX_SENT_BYTES
        seen.update(chunk.worker for chunk in chunks)
    assert seen == {3, 4}


def test_a_line_that_is_too_long_is_passed_over(here: Path) -> None:
    write_log(here, 3, 0)
    path = log_path(here, "worker 3")
    head, long = path.read_bytes(), b"x" * (2 * MAX_SENT_BYTES) + b"\n"
    path.write_bytes(head + long + head)
    files = SentFiles(here)
    files.note({3: len(head)})
    (chunk,) = files.next_chunks()
    assert (chunk.data, chunk.skipped) == (b"", len(long))
    files.note({3: len(head + long)})
    assert files.next_chunks()[0].data == head


def test_a_mark_that_may_be_taken_back_is_sent_at_the_end(here: Path) -> None:
    write_log(here, 3, 1)
    path = log_path(here, "worker 3")
    whole = path.read_bytes()
    mark = encode_line(EventsLost(t=1.0, source="worker 3", count=2, reason="full"))
    path.write_bytes(whole + mark)
    files = SentFiles(here)
    assert files.next_chunks()[0].data == whole
    assert files.next_chunks(is_final=True)[0].data == whole + mark


def test_what_is_said_of_logs_that_are_not_here_is_not_kept(here: Path) -> None:
    write_log(here, 3, 1)
    files = SentFiles(here)
    assert files.note({3: 5, 4: 6, **dict.fromkeys(range(100, 200), 1)})
    assert files._received == {3: 5, LAUNCHER: 0}
    assert files.note({3: -7})
    assert files.next_chunks()[0].offset == 0


def test_a_log_that_cannot_be_read_is_left_for_later(here: Path) -> None:
    events_dir(here).mkdir()
    log_path(here, "worker 3").symlink_to(here / "elsewhere")
    assert SentFiles(here).next_chunks() == ()


# --- breaks ---------------------------------------------------------------------------------------


class Shaky:
    """A coordinator on a line that breaks before or after it has heard, and that is restarted."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder = folder
        self._rng = rng
        self._streams = self._start()

    def _start(self) -> Streams:
        return Streams(
            self._folder,
            run="test",
            machine_of=lambda worker: machine_name(KEY) if worker in (3, 4) else "",
            limits=Limits(),
            tell=lambda event: None,
        )

    def post(self, request: EventsRequest) -> EventsAnswer:
        fate = self._rng.random()
        if fate < 0.2:
            raise OSError(None, "the line is down")
        if fate < 0.4:
            self._streams = self._start()
        answer = self._streams.take(request)
        if fate > 0.8:
            raise OSError(None, "the answer was lost")
        return answer


@pytest.mark.parametrize("seed", range(8))
def test_whatever_breaks_the_copies_are_what_was_written(
    here: Path, there: Path, seed: int
) -> None:
    rng = random.Random(seed)
    sender = Sender(SentFiles(here), Shaky(there, rng).post, KEY)
    written = dict.fromkeys((3, 4, LAUNCHER), 0)

    def send(*, is_final: bool = False) -> None:
        with contextlib.suppress(OSError):
            sender.send(is_final=is_final)

    for _ in range(12):
        worker = rng.choice([3, 4, LAUNCHER])
        write_log(here, worker, rng.randrange(300), start=written[worker])
        written[worker] += 1000
        send()
    for worker in written:
        write_log(here, worker, 1)
    for _ in range(200):
        send(is_final=True)
        if sender.is_over:
            break
    assert sender.is_over
    copies_are_whole(here, there, (3, 4))


def test_the_clock_is_that_of_the_quickest_answer(here: Path) -> None:
    write_log(here, 3, 1)
    requests: list[EventsRequest] = []
    delays = iter([0.05, 0.0, 0.05])

    def post(request: EventsRequest) -> EventsAnswer:
        requests.append(request)
        now = time.time() + 100.0
        time.sleep(next(delays))
        return EventsAnswer(now=now, received={})

    sender = Sender(SentFiles(here), post, KEY)
    sender.send()
    sender.send()
    assert requests[0].ahead_s == 0.0, "it is not known yet"
    assert requests[1].ahead_s == pytest.approx(100.0, abs=0.1)
    assert requests[2].ahead_s == pytest.approx(100.0, abs=0.02)


# --- over the network -----------------------------------------------------------------------------


def serve(folder: Path, port: int = 0) -> CoordinatorServer:
    driver = Driver(Settings(run="test", expected_workers=1), folder)
    server = CoordinatorServer(driver, keys=KEYS, port=port)
    server.start()
    return server


def job_for(server: CoordinatorServer, here: Path) -> Job:
    token = here / "token"
    token.write_text(KEYS.worker)
    token.chmod(0o600)
    config = RunConfig(run="test")
    return Job(config=config, run_dir=here, coordinator=server.url, token=token)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "INTERVAL_S", 0.05)
    monkeypatch.setattr(streaming, "STALLED_S", 0.5)


@contextlib.contextmanager
def greeted(server: CoordinatorServer) -> Iterator[None]:
    with open_line(server) as line:
        line.send(hello(3, machine=machine_name(KEY)))
        yield


def is_there(path: Path, size: int) -> Callable[[], bool]:
    return lambda: path.is_file() and path.stat().st_size >= size


@pytest.mark.usefixtures("quick")
def test_a_job_in_another_folder_becomes_whole_also_over_a_restart(here: Path, there: Path) -> None:
    server = serve(there)
    port = int(server.url.rpartition(":")[2])
    stream = EventStream(job_for(server, here), KEY)
    write_log(here, LAUNCHER, 1)
    write_log(here, 3, 5)
    copy, own = log_path(there, "worker 3"), log_path(here, "worker 3")
    with greeted(server):
        until(is_there(copy, own.stat().st_size), "the first events")
        server.stop()
    write_log(here, 3, 2000, start=5)
    server = serve(there, port)
    try:
        with greeted(server):
            assert stream.finish() == ""
            copies_are_whole(here, there, (3,))
    finally:
        server.stop()


@pytest.mark.usefixtures("quick")
def test_a_machine_whose_clock_is_wrong_is_read_by_ours(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> float:
        return time.time() + 1000.0

    clocks = {"time": wrong, "monotonic": time.monotonic, "sleep": time.sleep}
    monkeypatch.setattr(streaming, "time", SimpleNamespace(**clocks))
    server = serve(there)
    try:
        stream = EventStream(job_for(server, here), KEY)
        with greeted(server):
            began = time.time()
            path = log_path(here, "worker 3")
            with EventWriter(path, run="test", source="worker 3", clock=wrong) as log:
                log.write(EpochDone(t=wrong(), worker=3, epoch=0, step=1, samples=1))
            write_log(here, LAUNCHER, 1)
            assert stream.finish() == ""
    finally:
        server.stop()
    (found,) = [event for event in read_run(there) if isinstance(event, EpochDone)]
    assert began - 0.5 < found.t < time.time() + 0.5


@pytest.mark.usefixtures("quick")
def test_a_machine_that_is_left_alone_says_where_its_events_are(here: Path, there: Path) -> None:
    server = serve(there)
    stream = EventStream(job_for(server, here), KEY)
    server.stop()
    write_log(here, 3, 5)
    began_s = time.monotonic()
    told = stream.finish()
    assert time.monotonic() - began_s < 10
    size = log_path(here, "worker 3").stat().st_size
    assert told.startswith(f"{size} bytes of this machine's event logs have not reached")
    assert str(events_dir(here)) in told
    assert "Connection refused" in told


@pytest.mark.usefixtures("quick")
def test_what_the_coordinator_refuses_is_said_once(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(line: Any, request: EventsRequest) -> EventsAnswer:
        raise Refusal("the disk is full")

    monkeypatch.setattr(streaming.Line, "post", refuse)
    server = serve(there)
    server.stop()
    stream = EventStream(job_for(server, here), KEY)
    told = until(stream.take_news, "the news")
    assert told.endswith("and are kept here: the disk is full")
    assert stream.take_news() == ""
    assert stream.finish() == "", "there was nothing to send"


def test_another_machine_and_an_observer_cannot_write_a_workers_log(there: Path) -> None:
    server = serve(there)
    line = encode_line(LogOpened(t=1.0, schema=1, run="test", source="worker 3", host="x", pid=1))
    chunk = Chunk(worker=3, offset=0, data=line)
    body = msgspec.json.encode(EventsRequest(key="of another machine", chunks=(chunk,)))
    try:
        with greeted(server):
            until(lambda: server.driver.coordinator.machine_of(3), "the worker")
            answer = ask(server, "/api/events", KEYS.worker, content=body)
            assert (answer.status_code, answer.json()["received"]) == (200, {})
            assert ask(server, "/api/events", KEYS.observer, content=body).status_code == 403
            assert ask(server, "/api/events", KEYS.worker, content=b"[]").status_code == 400
        assert not log_path(there, "worker 3").exists()
    finally:
        server.stop()


@pytest.mark.usefixtures("quick")
def test_a_wrong_token_is_explained(here: Path, there: Path) -> None:
    server = serve(there)
    try:
        job = job_for(server, here)
        job.token_file.write_text("the-token-of-another-run")
        stream = EventStream(job, KEY)
        assert "token is missing or wrong" in until(stream.take_news, "the news")
        stream.finish()
    finally:
        server.stop()
