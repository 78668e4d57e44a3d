# SPDX-License-Identifier: Apache-2.0
"""One coordinator process as its launcher sees it: the line to it, and whether it still answers.

Silence alone is no proof that it hangs: a slow disk, a loaded machine or a launcher that was stopped
itself look alike. What was said while the launcher did not look is still in the line, so only time in
which it did look counts; and a process that waits for the disk is waited for.
"""

from __future__ import annotations

import socket
import time

import psutil

from gangline.protocol.lifeline import AnyOrder, Line, Standing

STOPPED_S = 0.4
"""A coordinator that is stopped (SIGSTOP) for so long is given up."""
SILENT_S = 3.0
"""One that runs, but has not given a sign of life for so long, hangs."""
DISK_S = 30.0
"""The same, while it waits for the disk."""
_GAP_S = 0.3
"""Whoever looks more rarely than this was held up itself: the time between does not count."""
_CHECK_S = 0.1


class Keeper:
    """The launcher's end of the line to one coordinator process."""

    def __init__(self) -> None:
        own, self._theirs = socket.socketpair()
        self._line: Line[Standing] = Line(own, Standing)
        self._process: psutil.Process | None = None
        self._looked_s = self._checked_s = time.monotonic()
        self._silent_s = self._stopped_s = 0.0
        self.standing: Standing | None = None
        """What it told last; None: it has not begun to serve."""
        self.is_loaded = False
        """Whether it has loaded everything, and could serve at once."""

    @property
    def descriptor(self) -> int:
        """The coordinator's end, to be inherited by its process."""
        return self._theirs.fileno()

    def started(self, pid: int) -> None:
        """The process is there, and has its end."""
        self._theirs.close()
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            self._process = None

    def order(self, order: AnyOrder) -> None:
        """Tells it what to do; a spare hears it when it begins to serve."""
        self._line.send(order)

    def look(self) -> str | None:
        """Hears what it says; why it must be given up, where it must."""
        now = time.monotonic()
        gone_s = min(now - self._looked_s, _GAP_S)
        self._looked_s = now
        told = self._line.receive()
        self._line.flush()
        if told:
            self.is_loaded = True
            self.standing = told[-1] if told[-1].is_serving else None
            self._silent_s = self._stopped_s = 0.0
            return None
        self._silent_s += gone_s
        self._stopped_s += gone_s
        if self.standing is None or self._silent_s < STOPPED_S or now - self._checked_s < _CHECK_S:
            return None  # it is only just starting, or nothing is wrong
        self._checked_s = now
        state = self._state()
        if state != psutil.STATUS_STOPPED:
            self._stopped_s = 0.0
        if self._stopped_s >= STOPPED_S:
            return f"it is stopped, and has not answered for {self._silent_s:.1f} s"
        if self._silent_s >= (DISK_S if state == psutil.STATUS_DISK_SLEEP else SILENT_S):
            return f"it has not answered for {self._silent_s:.1f} s"
        return None

    def _state(self) -> str:
        try:
            return "" if self._process is None else str(self._process.status())
        except psutil.Error:
            return ""

    def close(self) -> None:
        """Closes the line."""
        self._line.close()
        self._theirs.close()
