# SPDX-License-Identifier: Apache-2.0
"""The answering end of a connection about a shard: a thread that waits for one other worker."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from gangline.paramserver.service.link import BREAK_S, END_S, HOLDER, Connector
from gangline.paramserver.service.messages import Answer, Refused, Request, receive, send
from gangline.spec.errors import ExchangeError, GanglineError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group
    from gangline.spec.serving import Host

_log = logging.getLogger(__name__)
_RETRY_S = 0.02


class Reception:
    """Answers one other worker, over one connection after the other, until it is closed."""

    def __init__(
        self,
        connector: Connector,
        level: str,
        *,
        peer: Host,
        number: int,
        answer: Callable[[Request], Answer],
        max_bytes: int,
    ) -> None:
        self.peer = peer
        self._connector, self._level = connector, level
        self._number = number
        self._answer, self._max_bytes = answer, max_bytes
        self._connecting: int | None = None
        self._group: Group | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gangline-{level}", daemon=True)
        self._thread.start()

    def announce(self, number: int) -> None:
        """From now on the other one is waited for under this number; a connection stays."""
        self._number = number
        if self._connecting != number:
            self._cancel()

    def renumber(self, number: int) -> None:
        """As `announce`, and it is so when this returns."""
        self.announce(number)
        ends_at = time.monotonic() + END_S
        while self._connecting not in (None, number) and time.monotonic() < ends_at:
            self._cancel()
            time.sleep(BREAK_S)

    def stop(self) -> None:
        """Begins to close."""
        self._closed.set()
        self._cancel()

    def close(self) -> None:
        """Ends the thread and its connection."""
        ends_at = time.monotonic() + END_S
        self._closed.set()
        while self._thread.is_alive() and time.monotonic() < ends_at:
            self._cancel()
            group = self._group
            if group is not None:
                group.abort()
            self._thread.join(BREAK_S)

    @property
    def is_alive(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread.is_alive()

    def _cancel(self) -> None:
        number = self._connecting
        if number is not None:
            self._connector.cancel(self._level, serving_number=number)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                group = self._connect()
            except (GanglineError, OSError) as error:  # it has not come in time, or another one has
                _log.debug(
                    "worker %d does not come to %s: %s", self.peer.worker, self._level, error
                )
                self._closed.wait(_RETRY_S)
                continue
            self._group = group
            try:
                self._serve(group)
            finally:
                self._group = None
                group.abort()
                group.close()

    def _connect(self) -> Group:
        number = self._number
        self._connecting = number
        try:
            return self._connector.connect(
                self._level, rank=HOLDER, peer=self.peer, serving_number=number
            )
        finally:
            self._connecting = None

    def _serve(self, group: Group) -> None:
        try:
            while not self._closed.is_set():
                request, ticket = receive(group, Request, max_bytes=self._max_bytes)
                answer = self._answer(request)
                try:
                    send(group, answer, ticket=ticket)
                except (UnsupportedError, TypeError) as error:  # nothing of it was sent
                    send(group, Refused(kind="failed", reason=str(error)), ticket=ticket)
        except ExchangeError as error:  # idle for long, broken, or gone: it may come again
            _log.debug("%s of worker %d has ended: %s", self._level, self.peer.worker, error)
