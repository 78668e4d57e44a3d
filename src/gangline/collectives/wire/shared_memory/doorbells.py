# SPDX-License-Identifier: Apache-2.0
"""How members of one host wait for each other: counters in shared memory, bells, lifelines.

A member that waits looks at the counters for a while, then goes to sleep on its bell (an eventfd);
who makes the awaited change rings it, if it sleeps. Within an operation everybody is at work on
it, and it is worth looking for as long as a segment may take. At its beginning the others may
still be computing: whoever had to sleep there the last time looks no longer than a wake-up takes.

Every member holds the write end of its lifeline (a pipe); when the member dies or leaves, the
others see the read end hang up.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from gangline.collectives.forking import close_in_children
from gangline.collectives.wire.waiting import READ, SPIN_S, Alarm, Deadline, close_descriptors
from gangline.spec.errors import ExchangeError

if TYPE_CHECKING:
    import select
    from collections.abc import Callable

    from gangline.collectives.wire.shared_memory.mapping import Mapping

LOOK_S = 500e-6
"""How long to look for members who are at work on the same operation."""
_IS_WEAKLY_ORDERED = platform.machine() != "x86_64"


class Cords(NamedTuple):
    """The descriptors of one member."""

    bells: list[int]
    """Everybody's eventfd, in rank order."""
    lifelines: list[int]
    """The read ends of everybody's pipe, in rank order; this member's own is among them."""
    own: int
    """The write end of this member's pipe."""


class _Named:
    """Names who is late at the time when the name is asked for."""

    def __init__(self, missing: Callable[[], list[int]]) -> None:
        self._missing = missing

    def __str__(self) -> str:
        return "member " + ", ".join(map(str, self._missing()))


class Doorbells:
    """Waits for the other members, and wakes them."""

    def __init__(self, mapping: Mapping, *, rank: int, cords: Cords, alarm: Alarm) -> None:
        self._arrived, self._sleeping = mapping.arrived, mapping.sleeping
        self._rank, self._size = rank, mapping.layout.members
        self._peers = tuple(peer for peer in range(self._size) if peer != rank)
        self._cords, self._alarm = cords, alarm
        self._lock = threading.Lock()
        self._fence_lock = threading.Lock()
        self._own: list[int] = [cords.own]
        self._pollers: dict[tuple[int, ...], select.poll] = {}
        self._turn = 0
        self._look_first_s = LOOK_S
        close_in_children(self, self._own)

    def barrier(self, timeout_s: float, *, is_first: bool = False, is_quiet: bool = False) -> None:
        """Returns when all members have come here as often as this one.

        `is_first` says that an operation begins with it; `is_quiet` that another thread of this
        process has more to do than to wait, so that this one goes to sleep soon.
        """
        self.check()
        self._turn = turn = self._turn + 1
        if _IS_WEAKLY_ORDERED:
            self.fence()
        self._arrived[self._rank] = turn
        self.fence()
        if self._late(turn):
            look_s = self._look_first_s if is_first else LOOK_S
            if is_quiet:
                look_s = SPIN_S
            has_slept = self.wait(
                lambda: self._late(turn), on=self._peers, timeout_s=timeout_s, look_s=look_s
            )
            if is_first:
                self._look_first_s = SPIN_S if has_slept else LOOK_S
        else:
            # The last one to come wakes those who gave up watching.
            for peer in self._peers:
                self.wake(peer)
        if _IS_WEAKLY_ORDERED:
            self.fence()

    def check(self) -> None:
        """Raises where the group was aborted."""
        if self._alarm.aborted:
            self._alarm.check()

    def _late(self, turn: int) -> list[int]:
        """The members that have not come yet."""
        arrived = self._arrived
        return [peer for peer in self._peers if arrived[peer] < turn]

    def wake(self, peer: int) -> None:
        """Rings the peer's bell, if it sleeps. What it waits for was written before a `fence`."""
        if self._sleeping[peer]:
            os.eventfd_write(self._cords.bells[peer], 1)

    def fence(self) -> None:
        """Lets no access to memory move from one side of the call to the other.

        An uncontended lock is an atomic read-modify-write: on x86 one is a full fence; on ARM a
        release followed by an acquire is. (x86 keeps all other orders by itself.)
        """
        lock = self._fence_lock
        lock.acquire()
        lock.release()
        if _IS_WEAKLY_ORDERED:
            lock.acquire()
            lock.release()

    def wait(
        self,
        missing: Callable[[], list[int]],
        *,
        on: tuple[int, ...],
        timeout_s: float,
        look_s: float = LOOK_S,
    ) -> bool:
        """Waits until `missing`, which looks at the counters, names nobody any more.

        It is in vain when one of the members `on` whom it depends has left. It looks for `look_s`
        and then sleeps; the result says whether it did.
        """
        now = time.perf_counter
        spin_until = now() + look_s
        while now() < spin_until:
            if not missing():
                return False
            self.check()
            # The awaited member may be waiting for this core.
            os.sched_yield()
        deadline = Deadline(timeout_s)
        while True:
            self._sleeping[self._rank] = 1
            self.fence()
            if not missing():
                self._sleeping[self._rank] = 0
                return True
            gone = self._sleep(_Named(missing), on=on, deadline=deadline)
            if gone is not None and missing():
                raise ExchangeError(f"member {gone} is gone: it died, or left the group")

    def _sleep(self, late: _Named, *, on: tuple[int, ...], deadline: Deadline) -> int | None:
        """Sleeps until the bell rings, or a member leaves: then that one is returned."""
        bell, lifelines = self._cords.bells[self._rank], self._cords.lifelines
        poller = self._pollers.get(on)
        if poller is None:
            wanted = {bell: READ, **{lifelines[peer]: 0 for peer in on}}
            poller = self._pollers[on] = self._alarm.poller(wanted)
        happened = self._alarm.wait(poller, deadline=deadline, whom=late)
        if happened.pop(bell, None):
            os.eventfd_read(bell)
        return next((peer for peer in on if lifelines[peer] in happened), None)

    def hang_up(self) -> None:
        """Tells the others that this member is gone; from any thread."""
        with self._lock:
            close_descriptors(self._own)

    def close(self) -> None:
        self.hang_up()
        close_descriptors(self._cords.bells)
        close_descriptors(self._cords.lifelines)
        with contextlib.suppress(AttributeError):
            del self._arrived, self._sleeping
