# SPDX-License-Identifier: Apache-2.0
"""A journal without the records that nobody would miss gives the same coordinator."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_recording import INPUTS, WORKERS, beginning, step

from gangline.coordinator.coordinator import Coordinator
from gangline.coordinator.inputs import Said, Tick
from gangline.coordinator.kept.compaction import still_needed
from gangline.coordinator.kept.records import (
    AnyRecord,
    Closed,
    Emptied,
    InTeam,
    Leased,
    Merged,
    Published,
)
from gangline.coordinator.outputs import Keep
from gangline.coordinator.server import journal as journal_module
from gangline.coordinator.server.journal import FileJournal
from gangline.coordinator.settings import Settings
from gangline.protocol.messages import LeaseAsked
from gangline.spec.view import View

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from gangline.coordinator.inputs import Input

SETTINGS = Settings(run="r", expected_workers=WORKERS)


def lease(team: int, epoch: int, number: int) -> Leased:
    start = 4 * number
    return Leased(team=team, epoch=epoch, length=400, number=number, start=start, stop=start + 4)


def published(number: int, group: int, leaving: tuple[int, ...] = ()) -> Published:
    view = View(number=number, members=(0, 1), shares=(4, 4), group=group, reason="")
    return Published(view=view, is_recovery=False, leaving=leaving)


def test_past_epochs_are_gone_but_for_the_last_merge_of_each_team() -> None:
    merges = [
        Merged(number=1, epoch=0, offsets={0: 4, 1: 4}),
        Merged(number=2, epoch=0, offsets={0: 8}),
        Merged(number=3, epoch=1, offsets={0: 4}),
    ]
    closed = [
        Closed(epoch=epoch, step=9, round=2, is_complete=True, teams=(0, 1)) for epoch in (0, 1)
    ]
    records: list[AnyRecord] = [
        lease(0, 0, 0),
        lease(1, 0, 1),
        Emptied(team=0, epoch=0),
        *merges[:2],
        closed[0],
        lease(0, 1, 0),
        merges[2],
        closed[1],
        lease(0, 2, 0),
        Emptied(team=1, epoch=2),
    ]
    assert still_needed(records) == [
        merges[0],  # the last one of team 1
        merges[2],
        closed[1],
        lease(0, 2, 0),
        Emptied(team=1, epoch=2),
    ]


def test_of_a_groups_views_the_first_and_the_last_are_left() -> None:
    views = [published(n, group) for n, group in enumerate([0, 0, 0, 1, 1, 1, 1, 2])]
    kept = still_needed([*views, *(InTeam(team=3, record=one) for one in views)])
    numbers = [(one if isinstance(one, Published) else one.record).view.number for one in kept]
    assert numbers == [0, 2, 3, 6, 7] * 2


def test_who_was_told_to_leave_is_not_forgotten() -> None:
    records = [published(0, 0), published(1, 0, leaving=(2,)), published(2, 0), published(3, 0)]
    assert records[1] in still_needed(records)


def run(coordinator: Coordinator, given: list[Input]) -> list[AnyRecord]:
    records = []
    for number, one in enumerate(given):
        outputs = coordinator.handle(one, 1.0 + number / 100)
        records += [output.record for output in outputs if isinstance(output, Keep)]
    return records


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sync=st.sampled_from(["full", "none", "percentage(0.5)"]),
    before=st.lists(INPUTS, max_size=30),
    after=st.lists(INPUTS, max_size=15),
)
def test_a_coordinator_that_is_started_again_knows_as_much(
    sync: str, before: list[Input], after: list[Input]
) -> None:
    first = Coordinator(SETTINGS, now=0.0)
    leases = [
        Said(worker=w, message=LeaseAsked(epoch=0, number=0, length=40, team=w))
        for w in range(WORKERS)
    ]
    steps = [step(w, n) for n in range(12) for w in range(WORKERS)]
    records = run(first, [*beginning(sync), *steps, *leases, *before])
    again = [
        Coordinator(SETTINGS, now=9.0, records=kept) for kept in (records, still_needed(records))
    ]
    for number, one in enumerate([Tick(), *beginning(sync)[:WORKERS], *after]):
        whole, short = (coordinator.handle(one, 10.0 + number) for coordinator in again)
        assert whole == short


def test_a_journal_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 5_000)
    path = tmp_path / "journal.jsonl"
    journal = FileJournal(path)
    records: list[AnyRecord] = []
    for epoch in range(60):
        done = Closed(epoch=epoch, step=20, round=epoch, is_complete=True, teams=(0,))
        for record in (*(lease(0, epoch, n) for n in range(20)), done):
            journal.append(record)
            records.append(record)
    journal.close()
    assert path.stat().st_size < 30_000
    assert path.stat().st_mode & 0o777 == 0o600
    again = FileJournal(path)
    assert still_needed(again.records) == still_needed(records)
    again.close()


def test_a_disk_without_room_for_another_file_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 1_000)
    path = tmp_path / "journal.jsonl"
    journal = FileJournal(path)
    real = os.pwrite

    def write(descriptor: int, data: bytes, offset: int) -> int:
        if descriptor != journal._descriptor:
            raise OSError(28, "No space left on device")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    records = [lease(0, epoch, 0) for epoch in range(40)]
    for record in records:
        journal.append(record)
    journal.close()
    assert "could not be written anew: [Errno 28] No space left" in caplog.text
    assert [one.name for one in tmp_path.iterdir()] == ["journal.jsonl"]
    again = FileJournal(path)
    assert again.records == records
    again.close()
