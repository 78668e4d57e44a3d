# SPDX-License-Identifier: Apache-2.0
"""Keeps the event logs of other machines in the run folder, as their launchers send them.

A file per machine says how far each of its logs has come. It is written after the log and before the
machine is told: what a coordinator that dies has written beyond it is cut off, and sent again. So no
line is lost and none comes twice, whoever is killed when.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.server.events.lines import Origin, read_line
from gangline.coordinator.server.limits import Bucket
from gangline.eventlog import events_dir
from gangline.eventlog.lines import encode_line
from gangline.files.plainfile import open_plain, read_plain, replace_plain
from gangline.protocol.streaming import LAUNCHER, EventsAnswer, machine_name
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision, EventsLost, LogOpened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gangline.coordinator.server.limits import Limits
    from gangline.protocol.streaming import Chunk, EventsRequest
    from gangline.spec.event import Event

RESERVE_BYTES = 64 << 20
"""So much room is left on the disk for what the job cannot do without."""
SILENT_S = 5.0
"""A machine that was not heard for so long is not waited for."""
_MAX_AHEAD_S = 1e10
_CLOCK_S = 0.05
"""A clock that is off by less than this more or less is not corrected again."""
_log = logging.getLogger("gangline.coordinator")


class TooFastError(UsageError):
    """The machine is to send this again, later."""


class NoRoomError(UsageError):
    """The disk does not take it."""


class _Log(msgspec.Struct, kw_only=True):
    """One log of a machine, as far as it has come."""

    is_beside: bool = False
    """Whether there was a log of this worker that is not this machine's."""
    offset: int = 0
    """In the machine's own file: what is before this need not be sent again."""
    size: int = 0
    """Of the copy here."""
    dropped: int = 0
    """Lines that have no place here."""
    noted: int = 0
    """How many of them the copy says that it lacks."""
    ahead_s: float = 0.0
    header: LogOpened | None = None


class _Machine(msgspec.Struct, kw_only=True):
    """What is on the disk of a machine's logs."""

    logs: dict[int, _Log] = {}


class _Sender:
    """A machine that sends."""

    def __init__(self, known: _Machine, bucket: Bucket) -> None:
        self.known = known
        self.bucket = bucket
        self.heard_s = float("-inf")
        self.is_over = False


class Streams:
    """The logs of all machines that send theirs. Without a run folder it keeps none."""

    def __init__(
        self,
        run_dir: Path | None,
        *,
        run: str,
        machine_of: Callable[[int], str],
        limits: Limits,
        tell: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`machine_of` says on which machine a worker said it is; `tell` writes to our own log."""
        self._run_dir = run_dir
        self._run = run
        self._machine_of = machine_of
        self._limits = limits
        self._tell = tell
        self._clock = clock
        self._senders: dict[str, _Sender] = {}
        self._is_full = False

    @property
    def num_sending(self) -> int:
        """How many machines have more to send, as far as they were heard lately."""
        since = self._clock() - SILENT_S
        return sum(not one.is_over and one.heard_s > since for one in self._senders.values())

    def take(self, request: EventsRequest) -> EventsAnswer:
        """Keeps what a machine sends, and says how far its logs have come. Raises UsageError."""
        if self._run_dir is None:
            raise UsageError("this coordinator has no run folder: it keeps no event logs")
        if not abs(request.ahead_s) < _MAX_AHEAD_S:
            raise UsageError(f"ahead_s = {request.ahead_s}: no clock is so far off")
        machine = machine_name(request.key)
        sender = self._sender(machine, [chunk.worker for chunk in request.chunks])
        if sender is None:  # none of its workers has come yet
            return EventsAnswer(now=time.time(), received={})
        sender.heard_s = self._clock()
        size = sum(len(chunk.data) for chunk in request.chunks)
        if not sender.bucket.take(self._clock(), max(1.0, size)):
            rate = self._limits.log_bytes_per_s / (1 << 20)
            raise TooFastError(f"a machine sends at most {rate:g} MiB of event logs per second")
        try:
            self._keep(request, machine, sender)
        except OSError as error:
            told = error.strerror or str(error)
            self._note_room(told)
            raise NoRoomError(f"the run folder takes no event logs: {told}") from error
        if request.chunks:
            self._note_room("")
        sender.is_over = request.is_last
        received = {worker: log.offset for worker, log in sender.known.logs.items()}
        return EventsAnswer(now=time.time(), received=received)

    def _note_room(self, problem: str) -> None:
        """Says so once when the disk begins to refuse, and when it takes logs again."""
        if bool(problem) == self._is_full:
            return
        self._is_full = bool(problem)
        reason = "there is room again for the event logs of other machines"
        if problem:
            reason = (
                f"the event logs of other machines are not taken ({problem}): they are kept there "
                "until there is room here, and the training goes on"
            )
            _log.warning("%s", reason)
        what = "refuse_logs" if problem else "take_logs"
        self._tell(Decision(t=time.time(), what=what, reason=reason, numbers={}))

    def _sender(self, machine: str, workers: list[int]) -> _Sender | None:
        """A machine that has brought a worker; nothing is remembered of any other."""
        if machine not in self._senders:
            known = self._read(machine)
            if not known.logs and not any(self._machine_of(one) == machine for one in workers):
                return None
            limits = self._limits
            bucket = Bucket(limits.log_bytes_per_s, burst=limits.log_burst_bytes, now=self._clock())
            self._senders[machine] = _Sender(known, bucket)
        return self._senders[machine]

    def _keep(self, request: EventsRequest, machine: str, sender: _Sender) -> None:
        known = sender.known
        if request.chunks and shutil.disk_usage(self._folder).free < RESERVE_BYTES:
            raise OSError(None, "the disk is nearly full")
        has_new = False
        for chunk in request.chunks:
            if not self._owns(machine, known, chunk.worker):
                continue  # it may come yet; until then the machine keeps it
            if chunk.worker not in known.logs:
                is_taken = os.path.lexists(self._path(machine, chunk.worker, _Log()))
                known.logs[chunk.worker] = _Log(is_beside=is_taken)
                # Before there is a file of that name, so that nobody else is taken for its owner.
                self._write(machine, known)
            log = known.logs[chunk.worker]
            if chunk.offset == log.offset:
                self._append(chunk, log, machine, known, request.ahead_s)
                has_new = True
        if has_new:
            self._write(machine, known)

    def _owns(self, machine: str, known: _Machine, worker: int) -> bool:
        """Whether a log is this machine's, which has brought at least one worker."""
        is_known = worker == LAUNCHER or worker in known.logs
        return is_known or self._machine_of(worker) == machine

    def _append(
        self, chunk: Chunk, log: _Log, machine: str, known: _Machine, ahead_s: float
    ) -> None:
        """Writes the lines that have a place here; either all of them or, where it raises, none."""
        whole = chunk.data[: chunk.data.rfind(b"\n") + 1]
        skipped = max(0, chunk.skipped) if len(whole) == len(chunk.data) else 0
        origin = Origin(
            self._run, chunk.worker, lambda one: one >= 0 and self._owns(machine, known, one)
        )
        after = msgspec.structs.replace(log)
        lines = _sifted(whole, after, origin, ahead_s)
        total = sum(one.size for one in known.logs.values())
        if total + sum(map(len, lines)) > self._limits.log_bytes:
            after = msgspec.structs.replace(log, dropped=log.dropped + whole.count(b"\n"))
            lines = []
        after.dropped += skipped > 0
        lines += _note(after, origin)
        self._write_lines(self._path(machine, chunk.worker, log), log, b"".join(lines))
        after.size = log.size + sum(map(len, lines))
        after.offset = log.offset + len(whole) + skipped
        known.logs[chunk.worker] = after

    def _write_lines(self, path: Path, log: _Log, data: bytes) -> None:
        descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if os.fstat(descriptor).st_size < log.size:  # somebody has cut it: it begins anew
                log.offset = log.size = 0
                log.header = None
                os.ftruncate(descriptor, 0)
                raise OSError(None, f"{path.name} has become shorter: it is written anew")
            os.ftruncate(descriptor, log.size)
            try:
                written = 0
                while written < len(data):
                    written += os.write(descriptor, data[written:])
            except OSError:
                os.ftruncate(descriptor, log.size)
                raise
        finally:
            os.close(descriptor)

    # --- what is known of machines -----------------------------------------------------------------

    @property
    def _folder(self) -> Path:
        assert self._run_dir is not None
        return events_dir(self._run_dir)

    def _path(self, machine: str, worker: int, log: _Log) -> Path:
        """Where a log is kept: nothing that is sent, or read from the disk, names a file."""
        if worker == LAUNCHER:
            return self._folder / f"launcher-{machine}.jsonl"
        return self._folder / f"worker-{worker}{f'-{machine}' if log.is_beside else ''}.jsonl"

    def _read(self, machine: str) -> _Machine:
        try:
            found = read_plain(self._folder / f"{machine}.json")
            return msgspec.json.decode(found, type=_Machine)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _Machine()

    def _write(self, machine: str, known: _Machine) -> None:
        replace_plain(self._folder / f"{machine}.json", msgspec.json.encode(known))


def _sifted(data: bytes, log: _Log, origin: Origin, ahead_s: float) -> list[bytes]:
    """The lines that have a place here, with what the reader must know of their clock."""
    lines: list[bytes] = []
    if data and log.header is not None and abs(ahead_s - log.ahead_s) > _CLOCK_S:
        log.ahead_s = ahead_s
        lines.append(encode_line(msgspec.structs.replace(log.header, ahead_s=ahead_s)))
    for text in data.split(b"\n")[:-1]:
        line = text + b"\n"
        event = read_line(line, origin)
        if isinstance(event, LogOpened):
            log.ahead_s = ahead_s if abs(ahead_s) > _CLOCK_S else 0.0
            log.header = msgspec.structs.replace(event, ahead_s=log.ahead_s)
            lines.append(encode_line(log.header))
        elif event is None or log.header is None:  # a log begins with who writes it
            log.dropped += 1
        else:
            lines.append(line)
    return lines


def _note(log: _Log, origin: Origin) -> list[bytes]:
    """Says that lines were left out: seldom enough that a flood of them does not fill the disk."""
    if log.header is None or log.dropped < max(1, 2 * log.noted):
        return []
    told = EventsLost(
        t=log.header.t,
        source=origin.source,
        count=log.dropped - log.noted,
        reason="lines that are no events of this log, are too long, or are too many, were not kept",
    )
    log.noted = log.dropped
    return [encode_line(told)]
