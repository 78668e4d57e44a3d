# SPDX-License-Identifier: Apache-2.0
"""Keeps the replica of a shard up with it: passes requests on, with what happened in between."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.paramserver.service.messages import (
    Advancing,
    Done,
    Forgetting,
    Pushing,
    PushingEarly,
    Refused,
)
from gangline.spec.serving import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gangline.paramserver.service.link import Link
    from gangline.paramserver.service.messages import Loading, Request
    from gangline.spec.errors import ServerLost

PassedOn = Pushing | PushingEarly | Forgetting | Advancing
_ATTEMPTS = 3
_LOOK_S = 0.05


class Pull(NamedTuple):
    """A team has pulled when so many updates were applied."""

    team: int
    applied: int


class Replication:
    """The way from a shard to its replica. What it notes is guarded by the shard's lock."""

    def __init__(
        self,
        lock: threading.Condition,
        export: Callable[[], Loading],
        lost: Callable[[str], ServerLost],
    ) -> None:
        """`export` makes the message that makes a replica the same; `lost` an error."""
        self._lock, self._export, self._lost = lock, export, lost
        self._link: Link | None = None
        self._log: list[Entry | Pull] = []
        self._turn = threading.Lock()
        self._is_wanted: Callable[[], bool] | None = None
        """Whether what is passed on now is still wanted."""
        self._loaded: tuple[Link, int] | None = None
        """To whom, and over which of its connections, everything was sent."""
        self._is_closed = False

    @property
    def link(self) -> Link | None:
        """The link to the replica; None: there is none."""
        return self._link

    @property
    def has_loaded(self) -> bool:
        """Whether the replica, if there is one, was sent everything."""
        link = self._link
        return link is None or self._loaded == (link, link.number_of_connections)

    def follow(self, link: Link | None) -> Link | None:
        """Another replica, or none; returns the link that is over."""
        old, self._link = self._link, link
        if link is None:
            self._log = []
        return old if old is not link else None

    def note(self, happened: Sequence[Entry | Pull]) -> None:
        """The replica is to do the same, in this order, before the next request."""
        if self._link is not None:
            self._log += happened

    def begin_anew(self) -> None:
        """The shard is another one than it was: the replica is to be sent everything."""
        self._log, self._loaded = [], None

    def wake(self) -> None:
        """Breaks off what is passed on, if it is not wanted any more; from any thread."""
        is_wanted, link = self._is_wanted, self._link
        if is_wanted is not None and link is not None and not is_wanted():
            link.interrupt()

    def close(self) -> None:
        """Passes nothing on any more."""
        self._is_closed = True
        self.wake()
        if self._link is not None:
            self._link.close()

    def pass_on(self, request: PassedOn | None, is_wanted: Callable[[], bool]) -> None:
        """Gives the replica a request, and before what it lacks; a new one first gets everything.

        With no request it is only made sure that it has everything. Raises a ServerLost.
        """
        with self._one_at_a_time(is_wanted):
            for _ in range(_ATTEMPTS):
                link = self._link
                if link is None:
                    return
                if not self.has_loaded:
                    self._load(link)
                if request is not None:
                    self._advance(link, request)
                if self.has_loaded:
                    return  # else the connection was made anew in between, to who may be new to it
            raise self._lost("the connection to its replica breaks again and again")

    @contextlib.contextmanager
    def _one_at_a_time(self, is_wanted: Callable[[], bool]) -> Iterator[None]:
        while not self._turn.acquire(timeout=_LOOK_S):
            if self._is_closed or not is_wanted():
                raise self._lost("it was broken off")
        try:
            self._is_wanted = lambda: not self._is_closed and is_wanted()
            yield
        finally:
            self._is_wanted = None
            self._turn.release()

    def _load(self, link: Link) -> None:
        with self._lock:
            self._log = []
            request = self._export()
        self._ask(link, request)
        self._loaded = (link, link.number_of_connections)

    def _advance(self, link: Link, request: PassedOn) -> None:
        with self._lock:
            log, count = self._log, len(self._log)
        entries = tuple(item for item in log[:count] if isinstance(item, Entry))
        pulls = tuple(tuple(item) for item in log[:count] if isinstance(item, Pull))
        self._ask(link, msgspec.structs.replace(request, entries=entries, pulls=pulls))
        with self._lock:
            del log[:count]

    def _ask(self, link: Link, request: Request) -> None:
        answer = link.ask(request, is_wanted=self._is_wanted or (lambda: True))
        if isinstance(answer, Done):
            return
        self._loaded = None  # whatever is wrong with it is right when it is sent everything
        said = answer.reason if isinstance(answer, Refused) else type(answer).__name__
        raise self._lost(f"its replica, worker {link.peer.worker}, answers: {said}")
