# SPDX-License-Identifier: Apache-2.0
"""What is said about logs that could be read only in part."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.eventlog import LogNotes


def notices(note: LogNotes) -> Iterator[str]:
    """The lines about one log; none where all of it was read."""
    if not note.source:
        yield f"{note.path} holds no event yet"
    if note.torn_bytes:
        yield f"{note.path} ends in the middle of a line: still being written, or killed"
    if note.unknown_kinds:
        kinds = ", ".join(sorted(note.unknown_kinds))
        count = sum(note.unknown_kinds.values())
        yield f"{note.path} has {count} events of a newer gangline, left out: {kinds}"
