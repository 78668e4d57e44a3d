# SPDX-License-Identifier: Apache-2.0
"""Appends events to a log file, one line of JSON each.

    with EventWriter(log_path(run_dir, "worker 0"), run="digits", source="worker 0") as log:
        log.write(StepDone(t=time.time(), worker=0, step=0, ...))

A log must never stop a training run: nothing here raises because of the disk. What cannot be
written is counted in `lost`, its cause is in `problem`, and an `EventsLost` event says so in the
log as soon as writing works again.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from gangline.eventlog.appending import LogFile
from gangline.spec.event import SCHEMA_VERSION, AnyEvent, Event, EventsLost, LogOpened, StepDone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

_log = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.5
MAX_BATCH_LINES = 512
"""So many lines are written at once, however little time has passed."""
MAX_PENDING_LINES = 8192
"""So many lines are kept while the disk refuses them; what comes after is counted as lost."""


class EventSink(Protocol):
    """Where events go."""

    def write(self, event: Event) -> None:
        """Takes one event. Never raises."""

    def flush(self) -> None:
        """Brings everything taken so far to the file. Never raises."""

    def close(self) -> None:
        """Flushes, and takes no more events. May be called twice. Never raises."""


class NullWriter:
    """Takes events and keeps none."""

    def write(self, event: Event) -> None:
        """Forgets the event."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class EventWriter:
    """The log of one process. Any thread may write; a forked child's copy writes nothing.

    Steps are buffered for up to half a second; all other events, being rare, are written at once.
    """

    def __init__(
        self, path: Path, *, run: str, source: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._run = run
        self._source = source
        self._clock = clock
        self._pid = os.getpid()
        # Reentrant, as a signal handler may write while the main thread does.
        self._lock = threading.RLock()
        self._is_flushing = False
        self._is_closed = False
        self._pending: list[bytes] = []
        self._unreported = 0
        self._loss_reason = ""
        self._flushed_at = clock()
        self._file = LogFile(path, header=self._header)
        self.lost = 0
        """Events that are not in the log and never will be."""
        self.problem: str | None = None
        """Why the last attempt to write failed; None when it worked."""
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        atexit.register(self.close)
        self.flush()

    def write(self, event: Event) -> None:
        """Takes one event. Never raises."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._take(event)
            since_flush = self._clock() - self._flushed_at
            if (
                type(event) is not StepDone
                or not 0 <= since_flush < FLUSH_INTERVAL_S
                or (len(self._pending) >= MAX_BATCH_LINES and self.problem is None)
            ):
                self.flush()

    def flush(self) -> None:
        """Brings everything taken so far to the file. Never raises."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._is_flushing or self._is_closed:
                return
            self._is_flushing = True
            try:
                self._drain()
            finally:
                self._is_flushing = False

    def close(self) -> None:
        """Flushes, and takes no more events. May be called twice. Never raises."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self.flush()
            if not self._is_closed:
                self.lost += len(self._pending)
                self._pending.clear()
            self._is_closed = True
            self._file.close()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _take(self, event: Event) -> None:
        if self._is_closed:
            self.lost += 1
            return
        if len(self._pending) >= MAX_PENDING_LINES:
            self._count_lost(self.problem or "the buffer was full")
            return
        try:
            line = _line(event)
            if b":null" in line:
                _decoder.decode(line)  # a time that is not finite would make the log unreadable
            self._pending.append(line)
        except (TypeError, ValueError) as error:
            self._count_lost(f"a {type(event).__name__} cannot be written as JSON: {error}")

    def _count_lost(self, reason: str) -> None:
        self.lost += 1
        self._unreported += 1
        self._loss_reason = reason

    def _drain(self) -> None:
        self._flushed_at = self._clock()
        lines, self._pending = self._pending, []
        reported = self._unreported
        report = [_line(self._loss())] if reported else []
        whole, error = self._file.append(lines + report)
        # A signal handler may have added lines meanwhile: these come after what is left over.
        self._pending[:0] = lines[whole:]
        if error is None:
            self._unreported -= reported
        elif self.problem is None:
            _log.warning("events are missing from the log of %s: %s", self._source, error)
        self.problem = error

    def _loss(self) -> EventsLost:
        return EventsLost(
            t=self._clock(),
            source=self._source,
            count=self._unreported,
            reason=self._loss_reason,
        )

    def _header(self) -> bytes:
        opened = LogOpened(
            t=self._clock(),
            schema=SCHEMA_VERSION,
            run=self._run,
            source=self._source,
            host=socket.gethostname(),
            pid=self._pid,
        )
        return _line(opened)


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


def _line(event: Event) -> bytes:
    return _encoder.encode(event) + b"\n"
