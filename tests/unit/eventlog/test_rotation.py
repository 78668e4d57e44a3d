# SPDX-License-Identifier: Apache-2.0
"""A log that has grown long goes on in another file, and is read as one."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from gangline.engines.agent.tails import Tails
from gangline.engines.streaming.sentfiles import SentFiles
from gangline.eventlog import EventWriter, events_dir, log_path, read_run
from gangline.eventlog.parts import last_number, locate, newest_part, parts_of, total_size
from gangline.observe.live.follower import RunFollower
from gangline.spec.event import LogOpened, StepDone

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LIMIT = 4096


def step(number: int) -> StepDone:
    return StepDone(
        t=float(number), worker=0, step=number, epoch=0, view=0, samples=8, start=8 * number,
        stop=8 * number + 8, compute_s=0.1, data_s=0.0, exchange_s=0.0, update_s=0.0,
    )  # fmt: skip


def writer(folder: Path, max_bytes: int = LIMIT) -> EventWriter:
    path = log_path(folder, "worker 0")
    return EventWriter(path, run="r", source="worker 0", max_bytes=max_bytes)


def write(folder: Path, numbers: range) -> None:
    with writer(folder) as log:
        for number in numbers:
            log.write(step(number))
            if number % 5 == 0:
                log.flush()


def steps_in(folder: Path) -> list[int]:
    return [event.step for event in read_run(folder) if isinstance(event, StepDone)]


def test_the_files_are_read_as_one_log(tmp_path: Path) -> None:
    write(tmp_path, range(100))
    parts = parts_of(log_path(tmp_path, "worker 0"))
    assert [part.name for part in parts[:3]] == [
        "worker-0.jsonl",
        "worker-0.1.jsonl",
        "worker-0.2.jsonl",
    ]
    assert all(LIMIT <= part.stat().st_size < 2 * LIMIT for part in parts[:-1])
    assert steps_in(tmp_path) == list(range(100))
    opened = [event.part for event in read_run(tmp_path) if isinstance(event, LogOpened)]
    assert opened == list(range(len(parts)))


def test_a_process_that_is_started_again_goes_on_in_the_last_file(tmp_path: Path) -> None:
    write(tmp_path, range(96))
    path = log_path(tmp_path, "worker 0")
    count = len(parts_of(path))
    newest = newest_part(path)
    with newest.open("ab") as log:
        log.write(b'{"kind":"step_done","t":1')  # it was killed in the middle of a line
    write(tmp_path, range(96, 98))
    assert len(parts_of(path)) == count
    assert steps_in(tmp_path) == list(range(98))
    path.unlink()
    assert last_number(path) == count - 1, "also where old files were taken away"


def test_where_the_next_file_cannot_be_begun_the_log_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = True
    plain = os.write

    def write_or_refuse(descriptor: int, data: bytes) -> int:
        if is_full and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".1.jsonl"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(descriptor, data)

    monkeypatch.setattr(os, "write", write_or_refuse)
    path = log_path(tmp_path, "worker 0")
    with writer(tmp_path) as log:
        for number in range(40):
            log.write(step(number))
            log.flush()
        assert parts_of(path) == [path], "nothing is left of the other file"
        assert log.problem is None
        is_full = False
        log.write(step(40))
        log.flush()
        log.write(step(41))
    assert len(parts_of(path)) == 2
    assert steps_in(tmp_path) == list(range(42))


def test_who_sends_logs_counts_through_all_files(tmp_path: Path) -> None:
    write(tmp_path, range(100))
    path = log_path(tmp_path, "worker 0")
    whole = b"".join(part.read_bytes() for part in parts_of(path))
    assert total_size(path) == len(whole)
    files = SentFiles(tmp_path)
    sent = b""
    while chunks := [one for one in files.next_chunks() if one.worker == 0]:
        assert chunks[0].offset == len(sent)
        sent += chunks[0].data
        files.note({0: len(sent)})
    assert sent == whole
    assert files.num_unsent() == 0
    tails = Tails(tmp_path)
    tails.follow(0)
    taken = b""
    while some := [one.data for one in tails.take() if one.is_event]:
        taken += b"".join(some)
    assert taken == whole
    assert tails.is_read(0)


def test_a_place_in_the_log_is_found(tmp_path: Path) -> None:
    path = log_path(tmp_path, "worker 0")
    assert locate(path, 0) == (path, 0, True)
    write(tmp_path, range(100))
    first, second = parts_of(path)[:2]
    size = first.stat().st_size
    assert locate(path, size - 1) == (first, size - 1, False)
    assert locate(path, size) == (second, 0, False)


def test_who_follows_a_log_goes_on_to_its_next_file(tmp_path: Path) -> None:
    events_dir(tmp_path).mkdir()
    follower = RunFollower(tmp_path)
    found: list[int] = []
    with writer(tmp_path) as log:
        for number in range(100):
            log.write(step(number))
            if number % 7 == 0:
                log.flush()
                found += [one.step for one in follower.take() if isinstance(one, StepDone)]
    found += [one.step for one in follower.take() if isinstance(one, StepDone)]
    assert found == list(range(100))
