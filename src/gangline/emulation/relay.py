# SPDX-License-Identifier: Apache-2.0
"""Moves frames between the islands of an emulated network, and holds them back as links would.

Each island has a tap: a descriptor from which one reads what the island sends to others, frame by
frame, and into which one writes what it receives. Since whole frames are moved, whatever nodes use to
talk to each other is slowed alike, and none of it has to know.

A link is one pipe for each way: a frame waits until those before it are through, takes bytes over
bandwidth itself, and arrives after the delay. What is for everybody (the question whose address this
is) goes at once.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from gangline.emulation.islands import MAC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gangline.emulation.islands import NetworkPlan

_GREATEST_FRAME = 1 << 16
_FRAMES_AT_ONCE = 64
_GREATEST_QUEUE_S = 20.0
"""What would have to wait longer is dropped: whoever sends it has sent it several times by now."""


class Pipe:
    """One way of a link."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._s_per_byte = 0.0 if bytes_per_s is None else 1 / bytes_per_s
        self._free_s = 0.0
        self.slowdown = 1.0
        """How many times longer than usual it takes now."""

    def admit(self, num_bytes: int, *, now_s: float) -> float | None:
        """When a frame that comes now is through; None if it would have to wait for too long."""
        begin_s = max(now_s, self._free_s)
        if begin_s - now_s > _GREATEST_QUEUE_S:
            return None
        self._free_s = begin_s + num_bytes * self._s_per_byte * self.slowdown
        return self._free_s


class _Frame(NamedTuple):
    due_s: float
    number: int
    island: int
    content: bytes


class Switchboard:
    """Where frames go, and when. Knows no clock and no descriptors."""

    def __init__(self, plan: NetworkPlan, pipes: Mapping[tuple[int, int], Pipe]) -> None:
        self._plan = plan
        self._pipes = pipes
        self._island_of = plan.island_of()
        self._waiting: list[_Frame] = []
        self._numbers = itertools.count()

    def take(self, content: bytes, *, island: int, now_s: float) -> None:
        """A frame that an island has sent."""
        target, source = _node(content[:6]), _node(content[6:12])
        if target is None:
            for other in range(len(self._plan.islands)):
                if other != island:
                    self._keep(now_s, other, content)
            return
        way = None if source is None else self._plan.ways.get((source, target))
        if way is None:  # the switch did not know yet that its target is on the same island
            return
        pipe = None if way.pipe is None else self._pipes[way.pipe]
        through_s = now_s if pipe is None else pipe.admit(len(content), now_s=now_s)
        if through_s is not None:
            self._keep(through_s + way.delay_s, self._island_of[target], content)

    def due(self, now_s: float) -> Iterator[tuple[int, bytes]]:
        """The islands and frames whose time has come."""
        while self._waiting and self._waiting[0].due_s <= now_s:
            frame = heapq.heappop(self._waiting)
            yield frame.island, frame.content

    @property
    def next_s(self) -> float | None:
        """When the next frame is due; None if none is waiting."""
        return self._waiting[0].due_s if self._waiting else None

    def _keep(self, due_s: float, island: int, content: bytes) -> None:
        heapq.heappush(self._waiting, _Frame(due_s, next(self._numbers), island, content))


class Relay:
    """A thread that moves frames between taps; as a context manager it ends with it."""

    def __init__(self, switchboard: Switchboard, taps: Sequence[int]) -> None:
        """`taps` are descriptors, one per island; they stay the caller's."""
        self._switchboard = switchboard
        self._taps = {tap: island for island, tap in enumerate(taps)}
        self._by_island = list(taps)
        self._stop, self._stopper = os.pipe()
        self._thread = threading.Thread(target=self._move, name="gangline-relay", daemon=True)

    def __enter__(self) -> Relay:
        for tap in self._taps:
            os.set_blocking(tap, False)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._stopper)
        self._thread.join()
        os.close(self._stop)

    def _move(self) -> None:
        watched = [*self._taps, self._stop]
        while True:
            due_s = self._switchboard.next_s
            wait_s = None if due_s is None else max(0.0, due_s - time.perf_counter())
            # Not epoll, which waits for whole milliseconds.
            ready, _, _ = select.select(watched, [], [], wait_s)
            if self._stop in ready:
                return
            for tap in ready:
                for content in _frames(tap):
                    self._switchboard.take(
                        content, island=self._taps[tap], now_s=time.perf_counter()
                    )
            for island, content in self._switchboard.due(time.perf_counter()):
                with contextlib.suppress(OSError):  # full, or going down: a network loses frames
                    os.write(self._by_island[island], content)


def _frames(tap: int) -> Iterator[bytes]:
    with contextlib.suppress(BlockingIOError):
        for _ in range(_FRAMES_AT_ONCE):
            yield os.read(tap, _GREATEST_FRAME)


def _node(mac: bytes) -> int | None:
    """The node whose hardware address it is; None where it is nobody's."""
    return int.from_bytes(mac[4:], "big") if mac.startswith(MAC_PREFIX) else None
