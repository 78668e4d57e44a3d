# SPDX-License-Identifier: Apache-2.0
"""Events as lines of JSON, and the account of those that are missing from a log."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from gangline.spec.event import AnyEvent, Event, EventsLost, StepDone, StepsDone

if TYPE_CHECKING:
    from collections.abc import Iterable


class Line(NamedTuple):
    """An event that is to be written."""

    text: bytes
    t: float
    step: int
    """The step that it reports; -1: none."""
    last_step: int = -1
    """The last one, where it reports several."""

    @classmethod
    def of(cls, text: bytes) -> Self:
        """A line that was written before."""
        try:
            event = _decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return cls(text, 0.0, -1)
        return cls(text, event.t, *steps_of(event))


class Missing:
    """What is missing from a log: how much, since when, and which steps."""

    def __init__(self) -> None:
        self.count = 0
        self._reason = ""
        self._since: float | None = None
        self._first_step = self._last_step = -1

    def add(self, lines: Iterable[Line], reason: str) -> None:
        """These are missing, too."""
        for line in lines:
            self.count += 1
            self._reason = reason
            self._since = line.t if self._since is None else min(self._since, line.t)
            if line.step >= 0:
                first = line.step if self._first_step < 0 else self._first_step
                self._first_step = min(first, line.step)
                self._last_step = max(self._last_step, line.step, line.last_step)

    def join(self, other: Missing) -> None:
        """What another account says is missing, too."""
        ends = [Line(b"", other._since or 0.0, step) for step in other._ends]
        count = self.count + other.count
        self.add(ends[: other.count], other._reason)
        self.count = count

    @property
    def _ends(self) -> tuple[int, int]:
        return self._first_step, self._last_step

    def copy(self) -> Missing:
        """An account of its own that says the same."""
        return copy(self)

    def told(self, source: str, t: float) -> EventsLost:
        """The event that says so."""
        return EventsLost(
            t=t,
            source=source,
            count=self.count,
            reason=self._reason,
            since=self._since or 0.0,
            first_step=self._first_step,
            last_step=self._last_step,
        )


def steps_of(event: Event) -> tuple[int, int]:
    """The first and the last step that an event reports; -1: none."""
    match event:
        case StepDone(step=step):
            return step, step
        case StepsDone(step=step, steps=steps):
            return step, step + steps - 1
    return -1, -1


def encode_line(event: Event) -> bytes:
    """The event as a line. Raises TypeError or ValueError where no reader could read it."""
    text = _encoder.encode(event) + b"\n"
    if b":null" in text:
        _decoder.decode(text)  # a time that is not finite would make the log unreadable
    return text


def _plain(value: Any) -> Any:
    """The plain value in a special kind of text or number, as torch and numpy have them."""
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    try:
        return value.item()
    except AttributeError:
        raise TypeError(f"{type(value).__name__} has no form in JSON") from None


_encoder = msgspec.json.Encoder(enc_hook=_plain)
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
