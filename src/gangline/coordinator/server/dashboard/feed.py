# SPDX-License-Identifier: Apache-2.0
"""Follows a job for those who look on, and tells all of them the same, once per second.

Nothing is done while nobody looks. Logs are read by a thread, and what they say is taken in by the
event loop, which shows it, a few events at a time. Who does not read what it is sent is
dropped, so neither the coordinator nor the training ever waits for a browser.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.server.dashboard.fold import Fold
from gangline.coordinator.server.dashboard.present import snapshot_of
from gangline.coordinator.server.dashboard.tail import BEGIN_BYTES, READ_BYTES, LogTail
from gangline.protocol.live import History, Moments
from gangline.spec.errors import UsageError
from gangline.spec.event import (
    EpochDone,
    LinkMeasured,
    Logged,
    LogOpened,
    PacingMeasured,
    RoundEnded,
    SamplesLeased,
    StateHandedDown,
    StepDone,
    StepsDone,
    StepSummary,
    UnitsExchanged,
    Utilisation,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from gangline.coordinator.server.driver import Driver
    from gangline.protocol.live import Snapshot
    from gangline.spec.event import AnyEvent

INTERVAL_S = 1.0
MAX_WATCHERS = 32
MAX_UNREAD = 16
"""Who is so many intervals behind is dropped."""
MAX_EVENTS = 200
"""So many of the last events are told to who begins to look."""
TAKEN_AT_ONCE = 500
"""So many events are taken in before others have their turn."""
FREQUENT = (
    StepDone | StepsDone | StepSummary | Logged | Utilisation | UnitsExchanged | LinkMeasured
    | PacingMeasured | SamplesLeased | LogOpened | EpochDone | StateHandedDown
)  # fmt: skip
"""Events of which there are too many to look at; snapshots have what they come to."""

_log = logging.getLogger("gangline.coordinator")


class Watcher:
    """Somebody who looks on."""

    def __init__(self, *, wants_all: bool) -> None:
        self.wants_all = wants_all
        """Whether every single event is wanted, not only what people look at."""
        self.has_past = False
        """Whether it was told what was: until then, news are a part of that."""
        self.queue: asyncio.Queue[list[bytes] | None] = asyncio.Queue(MAX_UNREAD)

    def tell(self, lines: list[bytes]) -> bool:
        """Hands over some lines; False where nobody reads them."""
        try:
            self.queue.put_nowait(lines)
        except asyncio.QueueFull:
            return False
        return True

    def end(self) -> None:
        """There is nothing more to come; what is not read yet is not needed."""
        with suppress(asyncio.QueueEmpty):
            while True:
                self.queue.get_nowait()
        self.queue.put_nowait(None)


class Feed:
    """Lives in the server's event loop."""

    def __init__(
        self, driver: Driver, *, may_kill: bool = False, interval_s: float = INTERVAL_S
    ) -> None:
        self._driver = driver
        self._may_kill = may_kill
        self._interval_s = interval_s
        self._tail = LogTail(driver.run_dir)
        self._fold = Fold()
        self._events: deque[bytes] = deque(maxlen=MAX_EVENTS)
        self._watchers: list[Watcher] = []
        self._following: asyncio.Task[None] | None = None
        self._has_past = asyncio.Event()
        """Whether what was before somebody began to look is taken in."""
        self._taking = asyncio.Lock()
        """Held from the first event that is taken in to when all are told of them."""

    async def follow(self, *, role: str, wants_all: bool = False) -> AsyncGenerator[list[bytes]]:
        """What was, and then what happens, as lines of JSON. Raises UsageError where too many look."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise UsageError(f"{MAX_WATCHERS} look on already: close a page, and try again")
        watcher = Watcher(wants_all=wants_all)
        if self._following is None or self._following.done():
            self._has_past.clear()
            self._following = asyncio.create_task(self._follow())
        self._watchers.append(watcher)
        try:
            await self._has_past.wait()
            yield await self._begin(watcher, role)
            while (lines := await watcher.queue.get()) is not None:
                yield lines
        finally:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def snapshot(self) -> Snapshot:
        """The job as it is now, as far as it was followed."""
        return snapshot_of(
            self._driver.coordinator.status(),
            self._fold,
            now=time.time(),
            may_kill=self._may_kill,
            skipped_bytes=self._tail.skipped_bytes,
        )

    def close(self) -> None:
        """The server ends: so does every stream."""
        for watcher in self._watchers:
            watcher.end()

    def _now(self) -> bytes:
        return msgspec.json.encode(self.snapshot())

    async def _begin(self, watcher: Watcher, role: str) -> list[bytes]:
        """What was: all that was told so far, so that nothing is told twice or never."""
        async with self._taking:
            watcher.has_past = True
            history = History(role=role, moments=self._fold.timeline.moments())
            return [msgspec.json.encode(history), *self._events, self._now()]

    async def _follow(self) -> None:
        try:
            await self._take_in(await asyncio.to_thread(self._tail.begin, BEGIN_BYTES))
            self._fold.timeline.take_moments()
        except Exception:
            _log.exception("the dashboard cannot read the past of the job")
        finally:
            self._has_past.set()
        while self._watchers:
            await asyncio.sleep(self._interval_s)
            try:
                events = await asyncio.to_thread(self._tail.read, READ_BYTES)
                async with self._taking:
                    await self._take_in(events)
                    self._tell(events)
            except Exception:  # those who look on see less; the job must not notice
                _log.exception("the dashboard cannot follow the job")

    async def _take_in(self, events: list[AnyEvent]) -> None:
        for start in range(0, len(events), TAKEN_AT_ONCE):
            self._fold.take(events[start : start + TAKEN_AT_ONCE])
            await asyncio.sleep(0)
        self._events.extend(_encoded(one for one in events if is_rare(one)))

    def _tell(self, events: list[AnyEvent]) -> None:
        moments = self._fold.timeline.take_moments()
        points = [msgspec.json.encode(Moments(moments=moments))] if moments else []
        rare = _encoded(one for one in events if is_rare(one))
        is_all_wanted = any(watcher.wants_all for watcher in self._watchers)
        every = _encoded(events) if is_all_wanted else []
        now = self._now()
        for watcher in [one for one in self._watchers if one.has_past]:
            told = every if watcher.wants_all else rare
            if not watcher.tell([*points, *told, now]):
                self._watchers.remove(watcher)
                watcher.end()


def is_rare(event: AnyEvent) -> bool:
    """Whether people are told of an event by itself; else what it comes to is in the snapshots."""
    if isinstance(event, RoundEnded):
        return not event.is_committed
    return not isinstance(event, FREQUENT)


def _encoded(events: Iterable[AnyEvent]) -> list[bytes]:
    return [msgspec.json.encode(event) for event in events]
