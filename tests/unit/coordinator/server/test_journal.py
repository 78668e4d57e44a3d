# SPDX-License-Identifier: Apache-2.0
"""The coordinator's journal: what is kept, and what becomes of a damaged one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gangline.coordinator.kept.memory import replay
from gangline.coordinator.kept.records import Ended, Founded, Greeted, Published, Readied
from gangline.coordinator.server import journal as journal_module
from gangline.coordinator.server.journal import JOURNAL_NAME, FileJournal, open_journal
from gangline.protocol.messages import PROTOCOL_VERSION, Hello, Ready
from gangline.spec.exchange.address import WireAddress
from gangline.spec.view import View

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.spec.event import Event


class Sink:
    """Keeps the events that are written to it."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        """Nothing to close."""


def hello(worker: int) -> Hello:
    return Hello(
        protocol=PROTOCOL_VERSION,
        run="r",
        worker=worker,
        host="h",
        pid=100 + worker,
        address=WireAddress(host="127.0.0.1", port=1000 + worker),
    )


def ready() -> Ready:
    return Ready(
        global_batch=8, minimum=1, allocation="equal", shares=None, max_samples=None, seed=5
    )


def view(number: int, members: tuple[int, ...], group: int) -> View:
    return View(number=number, members=members, shares=(1,) * len(members), group=group)


RECORDS = [
    Greeted(worker=0, hello=hello(0)),
    Greeted(worker=1, hello=hello(1)),
    Founded(founders=(0, 1)),
    Readied(worker=0, ready=ready()),
    Readied(worker=1, ready=ready()),
    Published(view=view(0, (0, 1), 0), is_recovery=False),
    Greeted(worker=2, hello=hello(2)),
    Readied(worker=2, ready=ready()),
    Published(view=view(1, (0, 1, 2), 1), is_recovery=False),
    Published(view=view(2, (0, 2), 2), is_recovery=True),
    Published(view=view(3, (0, 2), 2), is_recovery=False),
    Published(view=view(4, (0,), 3), is_recovery=False, leaving=(2,)),
]


def write(path: Path) -> None:
    journal = FileJournal(path)
    for record in RECORDS:
        journal.append(record)
    journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / JOURNAL_NAME


def test_what_was_appended_is_read_again(path: Path) -> None:
    write(path)
    journal = FileJournal(path)
    assert journal.records == RECORDS
    assert journal.cut_bytes == 0
    journal.append(RECORDS[0])
    journal.close()
    again = FileJournal(path)
    assert again.records == [*RECORDS, RECORDS[0]]
    again.close()


@pytest.mark.parametrize("tail", [b"{", b'{"kind":"ended"}', b"nonsense\n", b'{"kind":"new"}\n'])
def test_a_tail_that_nobody_can_read_is_cut_with_a_warning(path: Path, tail: bytes) -> None:
    write(path)
    with path.open("ab") as file:
        file.write(tail)
    sink = Sink()
    journal = open_journal(path.parent, sink)
    assert journal.records == RECORDS
    (said,) = sink.events
    assert f"the last {len(tail)} bytes" in said.reason  # type: ignore[attr-defined]
    assert "goes on from the 12 records before them" in said.reason  # type: ignore[attr-defined]
    journal.append(Ended())
    journal.close()
    assert path.read_bytes().endswith(b'"leaving":[2]}\n{"kind":"ended"}\n')


def test_a_job_that_ended_is_not_gone_on_with(path: Path) -> None:
    write(path)
    journal = FileJournal(path)
    journal.append(Ended())
    journal.close()
    again = FileJournal(path)
    assert again.records == []
    again.append(RECORDS[0])
    again.close()
    assert path.read_bytes().count(b"\n") == 1


def test_records_that_found_no_room_are_written_with_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = FileJournal(path)

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        journal.append(RECORDS[0])
        journal.append(RECORDS[1])
    journal.append(RECORDS[2])
    journal.close()
    again = FileJournal(path)
    assert again.records == RECORDS[:3]
    assert caplog.text.count("is not complete on the disk: [Errno 28] No space left") == 1
    again.close()


def test_a_journal_that_finds_no_room_for_too_long_ends_without_a_gap(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_module, "MAX_UNWRITTEN_BYTES", 1)
    journal = FileJournal(path)

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        for record in RECORDS[:4]:
            journal.append(record)
    journal.append(RECORDS[4])
    journal.append(RECORDS[5])
    journal.close()
    again = FileJournal(path)
    assert again.records == RECORDS[:1], "what came before, and nothing from after a gap"
    assert caplog.text.count("will not know what came after") == 1
    again.close()


def test_the_records_come_to_where_the_job_is() -> None:
    memory = replay(RECORDS)
    assert memory.founded == Founded(founders=(0, 1))
    assert sorted(memory.hellos) == sorted(memory.ready) == [0, 1, 2]
    assert memory.view == view(4, (0,), 3)
    assert memory.first_view == 4
    assert not memory.is_recovery
    assert memory.dismissed == {2}
    assert memory.member_since == {0: 0}


def test_a_group_stays_a_recovery_when_its_shares_are_cut_anew() -> None:
    memory = replay(RECORDS[:-1])
    assert memory.view == view(3, (0, 2), 2)
    assert memory.is_recovery
    assert memory.first_view == 2
    assert memory.member_since == {0: 0, 2: 1}


def test_a_journal_that_is_closed_twice_closes_nothing_of_others(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal.jsonl")
    journal.close()
    reader, writer = os.pipe()
    try:
        journal.close()
        os.write(writer, b"x")
        assert os.read(reader, 1) == b"x"
    finally:
        os.close(reader)
        os.close(writer)
