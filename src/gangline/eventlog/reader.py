# SPDX-License-Identifier: Apache-2.0
"""Reads event logs: finished ones strictly, live or broken ones with notes of what is missing.

    for event in read_events(Path("runs/digits/events/worker-0.jsonl")):
        ...

Whatever is in the file, the only error is `LogError`, which names the file, the line and the fault.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, get_args

import msgspec

from gangline.files.plainfile import open_plain
from gangline.spec.errors import LogError
from gangline.spec.event import SCHEMA_VERSION, AnyEvent, Event, LogOpened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 22

EVENT_KINDS: dict[str, type[Event]] = {
    str(struct.__struct_config__.tag): struct for struct in get_args(AnyEvent)
}
"""Every kind of event, by the name that the log uses for it."""

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class LogNotes(msgspec.Struct, kw_only=True):
    """What a reader noticed in one log and could live with."""

    path: str
    source: str = ""
    """Who wrote the log; empty if not even its first line is there."""
    torn_bytes: int = 0
    """The length of a last line that was cut off in the middle."""
    unknown_kinds: dict[str, int] = {}
    """Events that only a newer gangline knows, by kind: they were skipped."""


class _Peek(msgspec.Struct):
    """The least that every line has in every version of the schema."""

    kind: str
    schema: int = SCHEMA_VERSION


_peek_decoder: msgspec.json.Decoder[_Peek] = msgspec.json.Decoder(_Peek)


def read_events(path: Path, *, notes: LogNotes | None = None) -> Iterator[AnyEvent]:
    """All events of one log, in the order in which they were written.

    A log that ends in the middle of a line, or before its first, is an error, unless there are
    `notes` to write that in. Events of kinds that this version does not know are skipped.
    """
    seen = LogNotes(path=str(path)) if notes is None else notes
    number = 0
    for number, line in enumerate(_lines(path), start=1):
        place = f"{path}, line {number}"
        try:
            event = _decode(line, place=place, is_first=number == 1)
        except LogError as error:
            is_whole = line.endswith(b"\n") or error.__cause__ is None
            if is_whole:
                raise
            if notes is None:
                raise LogError(
                    f"{place}: the last line is cut off after {len(line)} bytes; the process that "
                    f"wrote it is still running or was killed (`gangline report` reads such a log)"
                ) from error
            seen.torn_bytes = len(line)
            return
        if isinstance(event, str):
            seen.unknown_kinds[event] = seen.unknown_kinds.get(event, 0) + 1
            continue
        if isinstance(event, LogOpened):
            seen.source = event.source
        yield event
    if number == 0 and notes is None:
        raise LogError(f"{path} is empty; an event log begins with a `log_opened` line")


def tail_events(path: Path, offset: int) -> tuple[list[AnyEvent], int]:
    """The events that were written after `offset` bytes, and the offset to ask with next time.

    Begins with 0; a line that is not whole yet comes next time. A log that does not exist yet has
    no events, and one that has become shorter is another log and read from its start.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise _unreadable(path, error) from error
    position = offset if offset <= size else 0
    events: list[AnyEvent] = []
    for line in _lines(path, offset=position):
        if not line.endswith(b"\n"):
            break
        event = _decode(line, place=f"{path}, at byte {position}", is_first=position == 0)
        position += len(line)
        if not isinstance(event, str):
            events.append(event)
    return events, position


def _lines(path: Path, *, offset: int = 0) -> Iterator[bytes]:
    """The lines with their newlines. The file is closed between blocks: a run may have many."""
    rest = b""
    while True:
        try:
            with _open_plain(path) as file:
                file.seek(offset)
                block = file.read(_BLOCK_BYTES)
        except OSError as error:
            raise _unreadable(path, error) from error
        if not block:
            break
        offset += len(block)
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line + b"\n"
        if len(rest) > MAX_LINE_BYTES:
            raise LogError(
                f"{path} is not an event log: it has a line of over {MAX_LINE_BYTES} bytes"
            )
    if rest:
        yield rest


def _open_plain(path: Path) -> BinaryIO:
    """A log as a file; raises OSError for a link, and for a pipe, which would never end."""
    return os.fdopen(open_plain(path), "rb")


def _decode(line: bytes, *, place: str, is_first: bool) -> AnyEvent | str:
    """The event in `line`, or the name of its kind where this version does not know it."""
    try:
        if is_first:
            _check_first(_peek_decoder.decode(line), place=place)
        event = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        kind = _unknown_kind(line, place=place)
        if kind is not None:
            return kind
        raise LogError(f"{place}: this is not an event: {error}") from error
    if isinstance(event, LogOpened):
        _check_schema(event.schema, place=place)
    return event


def _check_first(peek: _Peek, *, place: str) -> None:
    if peek.kind != "log_opened":
        raise LogError(
            f"{place}: an event log begins with a `log_opened` line, not with `{peek.kind}`; "
            f"its beginning is missing, or this is another kind of file"
        )
    # Checked before the line is decoded in full: a newer schema may have changed its other fields.
    _check_schema(peek.schema, place=place)


def _check_schema(schema: int, *, place: str) -> None:
    if schema > SCHEMA_VERSION:
        raise LogError(
            f"{place}: the log was written with schema {schema}, and this gangline reads up to "
            f"{SCHEMA_VERSION}; upgrade it: pip install --upgrade gangline"
        )
    if schema < 1:
        raise LogError(f"{place}: schema versions start at 1, not {schema}")


def _unknown_kind(line: bytes, *, place: str) -> str | None:
    try:
        peek = _peek_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if peek.kind == "log_opened":
        _check_schema(peek.schema, place=place)
    return None if peek.kind in EVENT_KINDS else peek.kind


def _unreadable(path: Path, error: OSError) -> LogError:
    return LogError(f"cannot read the event log {path}: {error.strerror or error}")
