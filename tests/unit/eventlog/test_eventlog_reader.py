# SPDX-License-Identifier: Apache-2.0
"""Reading logs: whole, torn, foreign and broken ones."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_run import SyntheticRun, step_done

from gangline.eventlog import (
    EventWriter,
    LogNotes,
    log_path,
    merge_logs,
    read_events,
    read_run,
    reader,
    tail_events,
)
from gangline.spec.errors import LogError, UsageError
from gangline.spec.event import LogOpened, StepDone

if TYPE_CHECKING:
    from pathlib import Path

HEADER = (
    b'{"kind":"log_opened","t":1.0,"schema":1,"run":"r","source":"worker 0","host":"h","pid":7}\n'
)


def a_log(path: Path, steps: int = 3) -> Path:
    with EventWriter(path, run="r", source="worker 0", clock=lambda: 0.0) as log:
        for step in range(steps):
            log.write(step_done(step=step, t=float(step)))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.jsonl"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_all_events_come_in_order_when_the_log_is_whole(path: Path) -> None:
    opened, *steps = read_events(a_log(path))
    assert isinstance(opened, LogOpened)
    assert [step.step for step in steps if isinstance(step, StepDone)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "is empty; an event log begins with a `log_opened` line", id="empty"),
        pytest.param(HEADER + b"\n", "line 2: this is not an event", id="blank line"),
        pytest.param(HEADER + b"{]\n", "line 2: this is not an event", id="no json"),
        pytest.param(HEADER + b"\xff\xfe\n", "line 2: this is not an event", id="binary"),
        pytest.param(HEADER + b"[" * 9999 + b"\n", "line 2: this is not an event", id="deep"),
        pytest.param(
            HEADER + b'{"kind":"step_done","t":"soon"}\n', r"got `str` - at `\$.t`", id="wrong type"
        ),
        pytest.param(
            HEADER + b'{"kind":"run_ended","t":1}\n', "missing required field", id="no field"
        ),
        pytest.param(
            b'{"kind":"run_ended","t":1}\n', "not with `run_ended`", id="beginning missing"
        ),
        pytest.param(
            HEADER.replace(b'"schema":1', b'"schema":0'), "start at 1, not 0", id="schema 0"
        ),
        pytest.param(
            HEADER + b'{"kind":"run_e', "line 2: the last line is cut off after 14 bytes", id="torn"
        ),
    ],
)
def test_the_error_names_the_file_and_the_fault_when_a_log_is_bad(
    path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(LogError, match=message) as caught:
        list(read_events(written(path, content)))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(HEADER.replace(b'"schema":1', b'"schema":2'), id="same fields"),
        pytest.param(b'{"kind":"log_opened","schema":2,"time":5}\n', id="other fields"),
        pytest.param(b'{"kind":"log_opened","schema":2}', id="no newline"),
        pytest.param(HEADER + b'{"kind":"log_opened","schema":2}\n', id="written on"),
    ],
)
def test_the_error_says_upgrade_when_the_schema_is_newer(path: Path, line: bytes) -> None:
    with pytest.raises(LogError, match=r"schema 2.*reads up to 1; upgrade it: pip install"):
        list(read_events(written(path, line), notes=LogNotes(path="")))


def test_the_error_says_why_when_there_is_no_such_log(path: Path) -> None:
    with pytest.raises(LogError, match=r"cannot read the event log .*No such file"):
        list(read_events(path))
    with pytest.raises(LogError, match=r"Is a directory"):
        list(read_events(path.parent))


def test_a_line_that_never_ends_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 100_000)
    with pytest.raises(LogError, match="not an event log: it has a line of over 100000 bytes"):
        list(read_events(written(path, b"x" * 300_000)))


def test_a_torn_last_line_is_noted_when_there_are_notes(path: Path) -> None:
    whole = a_log(path).read_bytes()
    notes = LogNotes(path=str(path))
    events = list(read_events(written(path, whole[:-10]), notes=notes))
    assert [type(event) for event in events] == [LogOpened, StepDone, StepDone]
    assert notes.torn_bytes == len(whole.splitlines()[-1]) - 9
    assert notes.source == "worker 0"


def test_a_last_line_is_read_when_only_its_newline_is_missing(path: Path) -> None:
    whole = a_log(path).read_bytes()
    assert len(list(read_events(written(path, whole[:-1])))) == 4


def test_an_empty_log_has_no_events_when_there_are_notes(path: Path) -> None:
    assert list(read_events(written(path, b""), notes=LogNotes(path=""))) == []


def test_unknown_kinds_and_fields_are_skipped_and_counted(path: Path) -> None:
    later = b'{"kind":"moon_rose","t":1.0,"phase":{"x":[1]}}\n'
    content = HEADER.replace(b'"pid":7', b'"pid":7,"mood":"good"') + later * 2
    notes = LogNotes(path="")
    assert len(list(read_events(written(path, content), notes=notes))) == 1
    assert notes.unknown_kinds == {"moon_rose": 2}
    assert len(list(read_events(path))) == 1


def test_the_tail_gives_each_event_once_when_a_log_grows(path: Path) -> None:
    assert tail_events(path, 0) == ([], 0)
    whole = a_log(path).read_bytes()
    seen, offset = [], 0
    for cut in range(0, len(whole) + 1, 37):
        written(path, whole[:cut])
        events, offset = tail_events(path, offset)
        seen += events
    written(path, whole)
    events, offset = tail_events(path, offset)
    assert [*seen, *events] == list(read_events(path))
    assert offset == len(whole)
    assert tail_events(path, offset) == ([], offset)


def test_the_tail_starts_again_when_the_log_was_replaced(path: Path) -> None:
    _, offset = tail_events(a_log(path, steps=5), 0)
    path.unlink()
    events, _ = tail_events(a_log(path, steps=1), offset)
    assert len(events) == 2


def test_the_tail_names_the_place_when_a_line_is_bad(path: Path) -> None:
    written(path, HEADER + b'{"kind":"moon_rose"}\n' + b"{]\n")
    with pytest.raises(LogError, match=rf"at byte {len(HEADER) + 21}: this is not an event"):
        tail_events(path, 0)
    with pytest.raises(LogError, match="Not a directory"):
        tail_events(path / "below", 0)


def test_a_run_is_one_stream_by_time_when_its_logs_are_merged(tmp_path: Path) -> None:
    run = SyntheticRun([0.01, 0.02]).run_steps(4, shares=[4, 4]).end()
    merged = list(read_run(run.write(tmp_path)))
    times = [event.t for event in merged]
    assert times == sorted(times)
    assert len(merged) == len(run.events) + 3


def test_the_order_within_a_log_is_kept_when_its_clock_was_set_back(tmp_path: Path) -> None:
    path = log_path(tmp_path, "worker 0")
    times = [5.0, 3.0, 9.0, 1.0]
    with EventWriter(path, run="r", source="worker 0", clock=lambda: 0.0) as log:
        for step, t in enumerate(times):
            log.write(step_done(step=step, t=t))
    a_log(log_path(tmp_path, "worker 1"), steps=12)
    events = merge_logs([path, log_path(tmp_path, "worker 1")])
    steps = [e for e in events if isinstance(e, StepDone)]
    assert [e.t for e in steps if e.t in times and e.step < 4 and e.t != e.step] == times


def test_every_log_gets_notes_when_a_run_is_read_with_notes(tmp_path: Path) -> None:
    run_dir = SyntheticRun([0.01, 0.02]).run_steps(2, shares=[4, 4]).write(tmp_path)
    torn = log_path(run_dir, "worker 1")
    torn.write_bytes(torn.read_bytes()[:-5])
    notes: list[LogNotes] = []
    list(read_run(run_dir, notes=notes))
    assert [(note.source, note.torn_bytes > 0) for note in notes] == [
        ("launcher", False),
        ("worker 0", False),
        ("worker 1", True),
    ]


def test_the_error_says_what_to_give_when_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no run folder .*nowhere"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(LogError, match=r"there are no event logs in .*events"):
        read_run(tmp_path)


def test_no_descriptors_pile_up_when_many_logs_are_merged(tmp_path: Path) -> None:
    paths = [a_log(tmp_path / f"{i}.jsonl") for i in range(30)]
    before = len(os.listdir("/proc/self/fd"))
    events = merge_logs(paths)
    next(events)
    assert len(os.listdir("/proc/self/fd")) == before


GOOD = b"".join(
    [
        HEADER,
        b'{"kind":"step_done","t":2.5,"worker":0,"step":0,"epoch":0,"view":0,"samples":8,'
        b'"compute_s":0.5,"data_s":0.0,"exchange_s":0.1,"update_s":0.1}\n',
        b'{"kind":"run_ended","t":3.0,"status":"done","reason":"\xe2\x82\xac","wall_s":2.0}\n',
    ]
)


def flip(content: bytes, bits: list[int]) -> bytes:
    flipped = bytearray(content)
    for bit in bits:
        flipped[bit // 8 % len(flipped)] ^= 1 << bit % 8
    return bytes(flipped)


CONTENTS = st.one_of(
    st.binary(max_size=400),
    st.binary(max_size=100).map(lambda junk: HEADER + junk),
    st.integers(0, len(GOOD)).map(lambda cut: GOOD[:cut]),
    st.lists(st.integers(0, len(GOOD) * 8), max_size=6).map(lambda bits: flip(GOOD, bits)),
    st.lists(st.sampled_from(GOOD.splitlines(keepends=True)), max_size=6).map(b"".join),
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=CONTENTS, tolerant=st.booleans())
def test_reading_gives_events_or_a_log_error_whatever_the_file_holds(
    tmp_path: Path, content: bytes, tolerant: bool
) -> None:
    path = written(tmp_path / "x.jsonl", content)
    with suppress(LogError):
        list(read_events(path, notes=LogNotes(path="") if tolerant else None))
    with suppress(LogError):
        tail_events(path, 0)
