# SPDX-License-Identifier: Apache-2.0
"""Which of a journal's records a coordinator that is started again would miss.

A job of teams keeps a record of every lease, many per second; one in step keeps one of every view. Of
the epochs before the present one nothing is needed but the last merge of each team. Of the views of one
group, the first says since when it is there and the last what it is; those between change shares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.coordinator.kept.records import Closed, Emptied, InTeam, Leased, Merged, Published

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gangline.coordinator.kept.records import AnyRecord


def still_needed(records: Sequence[AnyRecord]) -> list[AnyRecord]:
    """The same records, in the same order, without those that later ones have made void."""
    epoch = max((one.epoch for one in records if isinstance(one, Leased)), default=-1)
    last_closed = max((i for i, one in enumerate(records) if isinstance(one, Closed)), default=-1)
    void = {
        *(
            i
            for i, one in enumerate(records)
            if isinstance(one, Leased | Emptied) and one.epoch < epoch
        ),
        *(i for i, one in enumerate(records) if isinstance(one, Closed) and i < last_closed),
        *_void_merges(records, epoch),
        *_void_views(records),
    }
    return [record for number, record in enumerate(records) if number not in void]


def _void_merges(records: Sequence[AnyRecord], epoch: int) -> Iterable[int]:
    """Merges of past epochs, but for the last one of each team on each level."""
    seen: set[tuple[int, int]] = set()
    for number in range(len(records) - 1, -1, -1):
        record = records[number]
        if not isinstance(record, Merged):
            continue
        teams = {(record.level, team) for team in record.offsets}
        if record.epoch < epoch and teams <= seen:
            yield number
        seen |= teams


def _void_views(records: Sequence[AnyRecord]) -> Iterable[int]:
    """Views between the first and the last of a group, of all workers or of one team."""
    before: dict[int, tuple[int, int, bool]] = {}
    """By team: the last view's place among the records, its group, and whether it was the first."""
    for number, record in enumerate(records):
        team, own = (record.team, record.record) if isinstance(record, InTeam) else (-1, record)
        if not isinstance(own, Published):
            continue
        place, group, was_first = before.get(team, (-1, -1, True))
        is_first = group != own.view.group
        if not is_first and not was_first:
            yield place
        # Who was told to leave with a view is told again when it comes back.
        before[team] = (number, own.view.group, is_first or bool(own.leaving))
