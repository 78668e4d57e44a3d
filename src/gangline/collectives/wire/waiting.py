# SPDX-License-Identifier: Apache-2.0
"""Waiting that can be broken off: a deadline, and an alarm that another thread can ring."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import threading
import time

from gangline.spec.errors import ExchangeAborted, ExchangeError

READ = select.POLLIN
WRITE = select.POLLOUT
SPIN_S = 50e-6
"""How long to look before going to sleep: about what it costs to be woken on another core."""
HANG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)


class Deadline:
    """A point in time, and what to say when it has passed."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def left_ms(self, whom: object) -> int:
        """Milliseconds for `poll`; raises the error that names who was waited for."""
        left = self.left_s
        if left <= 0:
            raise ExchangeError(f"waited {self.timeout_s:g} s for {whom}, in vain")
        return math.ceil(left * 1000)


class Alarm:
    """Wakes the thread that drives a group, from any thread; `abort` wakes it for good."""

    def __init__(self) -> None:
        # A socket pair, not an eventfd: it exists on every system.
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._lock = threading.Lock()
        self.aborted = False
        self.fd = self._ear.fileno()

    def ring(self) -> None:
        """Makes a wait in progress, or the next one, return."""
        with self._lock, contextlib.suppress(BlockingIOError, OSError):
            # A full buffer means that it rings already.
            self._bell.send(b"\0")

    def abort(self) -> None:
        """Makes every wait from now on raise ExchangeAborted."""
        self.aborted = True
        self.ring()

    def check(self) -> None:
        """Raises where the group was aborted."""
        if self.aborted:
            raise ExchangeAborted("the exchange was broken off by this process")

    def silence(self) -> None:
        """Takes back the rings so far."""
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(4096)

    def poll(self, wanted: dict[int, int], *, deadline: Deadline, whom: object) -> dict[int, int]:
        """Waits for one of the descriptors in `wanted` (descriptor -> events), or a ring.

        Returns what happened; empty after a ring. `whom` is named when the time runs out.
        """
        return self.wait(self.poller(wanted), deadline=deadline, whom=whom)

    def poller(self, wanted: dict[int, int]) -> select.poll:
        """What `poll` waits with, for those who wait for the same again and again."""
        poller = select.poll()
        poller.register(self.fd, READ)
        for descriptor, events in wanted.items():
            poller.register(descriptor, events)
        return poller

    def wait(self, poller: select.poll, *, deadline: Deadline, whom: object) -> dict[int, int]:
        """As `poll`."""
        self.check()
        happened = dict(poller.poll(deadline.left_ms(whom)))
        if happened.pop(self.fd, None):
            self.silence()
            self.check()
        elif not happened:
            deadline.left_ms(whom)
        return happened

    def pause(self, duration_s: float) -> None:
        """Waits a moment; an abort ends it."""
        poller = select.poll()
        poller.register(self.fd, READ)
        if poller.poll(math.ceil(duration_s * 1000)):
            self.silence()
        self.check()

    def close(self) -> None:
        with self._lock:
            self._bell.close()
            self._ear.close()


def close_descriptors(descriptors: list[int]) -> None:
    """Closes each, and empties the list."""
    while descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptors.pop())
