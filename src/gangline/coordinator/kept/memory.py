# SPDX-License-Identifier: Apache-2.0
"""What a journal comes to: where a coordinator that was started again goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.kept.records import (
    Founded,
    Greeted,
    KeptOut,
    Lowered,
    Published,
    Readied,
    Restructured,
    ScriptEnded,
)
from gangline.protocol.messages import Hello, Ready
from gangline.spec.view import View

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.coordinator.kept.records import AnyRecord


class Memory(msgspec.Struct, kw_only=True):
    """What the journal says of a job that had begun."""

    hellos: dict[int, Hello] = {}
    ready: dict[int, Ready] = {}
    lowered: dict[int, int] = {}
    """The most samples for whoever takes the place of a worker that ran out of memory."""
    founded: Founded | None = None
    view: View | None = None
    is_recovery: bool = False
    """Whether the present group replaced a broken one."""
    first_view: int = -1
    """The number of the first view of the present group."""
    restructured: Restructured | None = None
    """What was asked for, or planned, last."""
    dismissed: set[int] = set()
    """Who left, and is told so when it comes back for word of it."""
    member_since: dict[int, int] = {}
    """The group from which on each present member has been in all."""
    finished: dict[int, tuple[int, ...]] = {}
    """Whose script has ended by itself, and where."""
    kept_out: set[int] = set()
    """Whom an operator keeps out."""


def replay(records: Iterable[AnyRecord]) -> Memory:
    """Goes through the records in their order."""
    memory = Memory()
    for record in records:
        match record:
            case Greeted(worker=worker, hello=hello):
                memory.hellos[worker] = hello
            case Founded():
                memory.founded = record
            case Readied(worker=worker, ready=ready):
                memory.ready[worker] = ready
            case Lowered(worker=worker, max_samples=max_samples):
                memory.lowered[worker] = max_samples
            case ScriptEnded(worker=worker, position=position):
                memory.finished[worker] = position
            case Restructured():
                memory.restructured = record
            case KeptOut(worker=worker, is_out=True):
                memory.kept_out.add(worker)
            case KeptOut(worker=worker):
                memory.kept_out.discard(worker)
            case Published():
                _see(memory, record)
    return memory


def _see(memory: Memory, record: Published) -> None:
    view = record.view
    if memory.view is None or view.group != memory.view.group:
        memory.is_recovery = record.is_recovery
        memory.first_view = view.number
        memory.member_since = {
            member: memory.member_since.get(member, view.group) for member in view.members
        }
    memory.view = view
    memory.dismissed = (memory.dismissed | set(record.leaving)) - set(view.members)
