# SPDX-License-Identifier: Apache-2.0
"""Appends events to a log file, one line of JSON each.

    with EventWriter(log_path(run_dir, "worker 0"), run="digits", source="worker 0") as log:
        log.write(StepDone(t=time.time(), worker=0, step=0, ...))

A log must never stop a training run: nothing here raises because of the disk. What cannot be
written is kept, and written when there is room. What is too much to be kept, or is not written when
the process ends, is counted in `lost`; an `EventsLost` event says so in the log.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, Self

from gangline.eventlog.appending import LogFile
from gangline.eventlog.lines import Line, Missing, encode_line, steps_of
from gangline.eventlog.parts import last_number
from gangline.eventlog.paths import part_path
from gangline.spec.event import (
    SCHEMA_VERSION,
    Event,
    Logged,
    LogOpened,
    StepDone,
    StepsDone,
    UnitsExchanged,
    Utilisation,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

_log = logging.getLogger(__name__)

FREQUENT = frozenset((StepDone, StepsDone, Logged, UnitsExchanged, Utilisation))
"""Kinds that come with every step, or by themselves: they may wait to be written together."""
FLUSH_INTERVAL_S = 0.5
MAX_BATCH_LINES = 512
"""So many lines are written at once, however little time has passed."""
MAX_PENDING_BYTES = 16 << 20
"""So much is kept while the disk refuses it (about 70,000 steps); what comes after is lost."""
_MARK_TRIES = 4


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

    Steps, and what is measured beside them, are buffered for up to half a second; all other events,
    being rare, are written at once. A thread of its own writes what is buffered when no event follows,
    as in a long step or a hang. It looks twice a second: a signal handler may write, too, and could not
    wake it safely.
    """

    def __init__(
        self,
        path: Path,
        *,
        run: str,
        source: str,
        max_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A file that has grown to `max_bytes` goes on in another one; None: it never does."""
        self._path = path
        self._max_bytes = max_bytes
        self._part = last_number(path)
        self._run = run
        self._source = source
        self._clock = clock
        self._pid = os.getpid()
        # Reentrant, as a signal handler may write while the main thread does.
        self._lock = threading.RLock()
        self._is_flushing = False
        self._is_closed = False
        self._taken: list[Event] = []
        """Not encoded yet: many at once cost a step less than one after each."""
        self._pending: list[Line] = []
        self._pending_bytes = 0
        self._missing = Missing()
        """What is lost, and not yet reported."""
        self._is_losing = False
        self._flushed_at = clock()
        self._file = LogFile(part_path(path, self._part), header=self._header)
        self.lost = 0
        """Events that are not in the log and never will be."""
        self.problem: str | None = None
        """Why the last attempt to write failed; None when it worked."""
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        atexit.register(self.close)
        self.flush()
        threading.Thread(target=self._keep_writing, daemon=True).start()

    def write(self, event: Event) -> None:
        """Takes one event. Never raises."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._is_closed:
                self.lost += 1
                return
            self._taken.append(event)
            if self.problem is not None:  # what is kept has its limit
                self._encode_taken()
            if type(event) not in FREQUENT or len(self._taken) >= MAX_BATCH_LINES or self._is_due:
                self.flush()

    @property
    def _is_due(self) -> bool:
        return not 0 <= self._clock() - self._flushed_at < FLUSH_INTERVAL_S

    def _keep_writing(self) -> None:
        while not self._is_closed:
            time.sleep(FLUSH_INTERVAL_S)
            with self._lock:
                if (self._taken or self._pending) and self._is_due:
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
                self.lost += len(self._pending) + len(self._taken)
                self._pending.clear()
                self._taken.clear()
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

    def _encode_taken(self) -> None:
        taken, self._taken = self._taken, []
        for event in taken:
            self._encode(event)

    def _encode(self, event: Event) -> None:
        steps = steps_of(event)
        try:
            text = encode_line(event)
        except (TypeError, ValueError) as error:
            reason = f"a {type(event).__name__} cannot be written as JSON: {error}"
            self._lose(Line(b"", self._clock(), *steps), reason)
            return
        line = Line(text, event.t, *steps)
        # What comes after a lost one is lost too, until that is reported: the log keeps its order.
        if self._is_losing or self._pending_bytes + len(text) > MAX_PENDING_BYTES:
            self._is_losing = True
            self._lose(line, self.problem or "the buffer was full")
            return
        self._pending.append(line)
        self._pending_bytes += len(text)

    def _lose(self, line: Line, reason: str) -> None:
        self.lost += 1
        self._missing.add([line], reason)

    def _put_back(self, lines: list[Line]) -> None:
        # A signal handler may have added lines meanwhile: these come after what is left over.
        self._pending[:0] = lines
        self._pending_bytes = sum(len(line.text) for line in self._pending)

    def _drain(self) -> None:
        self._flushed_at = self._clock()
        self._encode_taken()
        lines, self._pending = self._pending, []
        missing, self._missing = self._missing, Missing()
        report = [encode_line(missing.told(self._source, self._clock()))] if missing.count else []
        whole, error = self._file.append([*(line.text for line in lines), *report])
        self._put_back(lines[whole:])
        if error is None:
            self._is_losing = False
            if self._max_bytes is not None and self._file.size >= self._max_bytes:
                self._go_on_in_another()
        else:
            if self.problem is None:
                _log.warning("events are missing from the log of %s: %s", self._source, error)
            missing.join(self._missing)
            self._missing = missing
            self._mark(error)
        self.problem = error

    def _go_on_in_another(self) -> None:
        """The file is long enough: the log goes on in a new one, if one can be begun."""
        path = part_path(self._path, self._part + 1)
        before, self._part = self._file, self._part + 1
        fresh = LogFile(path, header=self._header)
        _, error = fresh.append(())
        if error is None:
            before.close()
            self._file = fresh
            return
        self._part -= 1
        fresh.close()
        with suppress(OSError):  # it is empty: nobody could read it
            path.unlink()

    def _mark(self, error: str) -> None:
        """Says in the file that what is kept here is missing: this process may be killed."""
        for _ in range(_MARK_TRIES):
            missing = self._missing.copy()
            missing.add(self._pending, error)
            taken = self._file.mark(encode_line(missing.told(self._source, self._clock())))
            if not taken:
                return
            # What was taken back to make room is missing, too: it is counted the next time.
            back = [Line.of(text) for text in taken]
            self._put_back(back)

    def _header(self) -> bytes:
        opened = LogOpened(
            t=self._clock(),
            schema=SCHEMA_VERSION,
            run=self._run,
            source=self._source,
            host=socket.gethostname(),
            pid=self._pid,
            part=self._part,
        )
        return encode_line(opened)
