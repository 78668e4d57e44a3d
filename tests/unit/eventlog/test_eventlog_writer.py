# SPDX-License-Identifier: Apache-2.0
"""What the writer puts into a log, and when."""

from __future__ import annotations

import shutil
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from synthetic_run import step_done

from gangline.eventlog import EventWriter, NullWriter, log_path, read_events
from gangline.eventlog import writer as writer_module
from gangline.eventlog.lines import encode_line
from gangline.spec.event import Decision, EventsLost, LogOpened, StepDone

if TYPE_CHECKING:
    from pathlib import Path


class FakeClock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return log_path(tmp_path / "run", "worker 3")


def open_log(path: Path, clock: FakeClock) -> EventWriter:
    return EventWriter(path, run="digits", source="worker 3", clock=clock)


def steps_in(path: Path) -> list[int]:
    return [event.step for event in read_events(path) if isinstance(event, StepDone)]


def test_the_first_line_says_who_writes_when_a_log_is_opened(path: Path, clock: FakeClock) -> None:
    with open_log(path, clock):
        (first,) = read_events(path)
    assert isinstance(first, LogOpened)
    assert (first.t, first.schema, first.run, first.source) == (100.0, 1, "digits", "worker 3")
    assert first.host
    assert first.pid > 0


def test_events_come_back_as_they_were_when_the_log_is_read(path: Path, clock: FakeClock) -> None:
    event = step_done(compute_s=0.1 + 0.2, step=7)
    with open_log(path, clock) as log:
        log.write(event)
    assert list(read_events(path))[1:] == [event]


def test_steps_are_buffered_until_half_a_second_has_passed(path: Path, clock: FakeClock) -> None:
    with open_log(path, clock) as log:
        log.write(step_done(step=0))
        assert steps_in(path) == []
        clock.now += 0.5
        log.write(step_done(step=1))
        assert steps_in(path) == [0, 1]


def test_buffered_steps_are_written_though_nothing_follows(path: Path) -> None:
    with EventWriter(path, run="digits", source="worker 3") as log:
        log.write(step_done(step=0))
        log.write(step_done(step=1))
        deadline = time.monotonic() + 20
        while steps_in(path) != [0, 1]:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_batch_is_written_when_it_is_large(path: Path, clock: FakeClock) -> None:
    with open_log(path, clock) as log:
        for step in range(writer_module.MAX_BATCH_LINES):
            log.write(step_done(step=step))
        assert len(steps_in(path)) == writer_module.MAX_BATCH_LINES


def test_the_buffer_is_written_when_the_clock_is_set_back(path: Path, clock: FakeClock) -> None:
    with open_log(path, clock) as log:
        clock.now -= 3600
        log.write(step_done(step=0))
        assert steps_in(path) == [0]


def test_rare_events_are_written_at_once(path: Path, clock: FakeClock) -> None:
    decision = Decision(t=100.0, what="shares", reason="asked", numbers={"n": 2.0})
    with open_log(path, clock) as log:
        log.write(step_done(step=0))
        log.write(decision)
        assert list(read_events(path))[1:] == [step_done(step=0), decision]


def test_a_second_log_opened_follows_when_a_log_is_written_on(path: Path, clock: FakeClock) -> None:
    for step in range(2):
        with open_log(path, clock) as log:
            log.write(step_done(step=step))
    kinds = [type(event) for event in read_events(path)]
    assert kinds == [LogOpened, StepDone, LogOpened, StepDone]


@pytest.mark.parametrize("torn", [b'{"kind":"step_d', b"x" * 200_000], ids=["short", "long"])
def test_a_torn_last_line_is_cut_off_when_a_log_is_written_on(
    path: Path, clock: FakeClock, torn: bytes
) -> None:
    with open_log(path, clock) as log:
        log.write(step_done(step=0))
    with path.open("ab") as file:
        file.write(torn)
    with open_log(path, clock) as log:
        log.write(step_done(step=1))
    assert steps_in(path) == [0, 1]


def test_a_file_of_one_torn_line_gets_a_header_when_written_on(
    path: Path, clock: FakeClock
) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"kind":"log_op')
    with open_log(path, clock):
        pass
    assert [type(event) for event in read_events(path)] == [LogOpened]


def test_every_line_is_whole_when_threads_write_at_once(path: Path, clock: FakeClock) -> None:
    with open_log(path, clock) as log:

        def write_all(worker: int) -> None:
            for step in range(300):
                log.write(step_done(worker=worker, step=step))

        threads = [threading.Thread(target=write_all, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for worker in range(4):
        steps = [
            e.step for e in read_events(path) if isinstance(e, StepDone) and e.worker == worker
        ]
        assert steps == list(range(300))


def test_nothing_is_lost_when_the_folder_comes_back_in_time(path: Path, clock: FakeClock) -> None:
    with open_log(path, clock) as log:
        shutil.rmtree(path.parent)
        log.write(step_done(step=0))
        log.flush()
        assert log.problem == "No such file or directory"
        path.parent.mkdir()
        log.flush()
        assert log.problem is None
        assert log.lost == 0
    assert [type(event) for event in read_events(path)] == [LogOpened, StepDone]


def test_the_log_says_how_many_are_missing_when_the_folder_comes_back_late(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(encode_line(step_done(step=0)))
    monkeypatch.setattr(writer_module, "MAX_PENDING_BYTES", 5 * size)
    with open_log(path, clock) as log:
        shutil.rmtree(path.parent)
        log.flush()
        for step in range(12):
            log.write(step_done(step=step))
        assert log.lost == 7
        path.parent.mkdir()
        log.flush()
    *_, loss = read_events(path)
    assert loss == EventsLost(
        t=100.0,
        source="worker 3",
        count=7,
        reason="No such file or directory",
        since=step_done(step=5).t,
        first_step=5,
        last_step=11,
    )
    assert steps_in(path) == [0, 1, 2, 3, 4]
    assert log.lost == 7


def test_the_writer_counts_when_there_never_is_a_folder(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    log = open_log(log_path(tmp_path / "run", "worker 3"), clock)
    log.write(step_done())
    log.close()
    assert log.problem == "Not a directory"
    assert log.lost == 1


def test_an_event_is_counted_as_lost_when_it_comes_after_the_end(
    path: Path, clock: FakeClock
) -> None:
    log = open_log(path, clock)
    log.close()
    log.write(step_done())
    log.close()
    assert log.lost == 1
    assert steps_in(path) == []


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        pytest.param(step_done(compute_s=float("nan")), "StepDone", id="not a number"),
        pytest.param(
            Decision(t=0.0, what="\ud800", reason="", numbers={}), "Decision", id="broken text"
        ),
        pytest.param(
            Decision(t=0.0, what="", reason="", numbers={"n": object()}),  # type: ignore[dict-item]
            "object has no form in JSON",
            id="no number",
        ),
    ],
)
def test_the_log_stays_readable_when_an_event_cannot_be_written(
    path: Path, clock: FakeClock, event: StepDone | Decision, fault: str
) -> None:
    with open_log(path, clock) as log:
        log.write(event)
    _, loss = read_events(path)
    assert isinstance(loss, EventsLost)
    assert loss.count == 1
    assert fault in loss.reason
    assert "cannot be written as JSON" in loss.reason


class Version(str):
    """Text of a special kind, as `torch.__version__` is."""

    __slots__ = ()


def test_values_are_plain_when_numpy_or_torch_made_them(path: Path, clock: FakeClock) -> None:
    numbers = {
        "a": np.float32(0.5),
        "b": np.float64(0.25),
        "c": np.int64(3),
        "d": float("inf"),
    }
    with open_log(path, clock) as log:
        log.write(Decision(t=0.0, what=Version("2.13"), reason="r", numbers=numbers))
    _, event = read_events(path)
    assert isinstance(event, Decision)
    assert event.what == "2.13"
    assert event.numbers == {"a": 0.5, "b": 0.25, "c": 3.0, "d": None}


def test_a_null_writer_takes_everything_and_keeps_nothing() -> None:
    log = NullWriter()
    log.write(step_done())
    log.flush()
    log.close()


def test_a_line_is_one_json_object_with_its_kind_first(path: Path, clock: FakeClock) -> None:
    with open_log(path, clock) as log:
        log.write(step_done())
    line = path.read_bytes().splitlines()[1]
    assert line.startswith(b'{"kind":"step_done","t":1000.0,')
    assert msgspec.json.decode(line)["samples"] == 8
