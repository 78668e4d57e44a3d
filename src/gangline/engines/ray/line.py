# SPDX-License-Identifier: Apache-2.0
"""The line to an agent through the actor that runs it."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Any

from gangline.engines.hosts.line import Line
from gangline.protocol.agents import NO_DESCRIPTOR, Channel, Ended, FromAgent

if TYPE_CHECKING:
    from concurrent.futures import Future


class ActorChannel(Channel[FromAgent]):
    """Bytes to and from an actor; neither end ever waits for the other one."""

    def __init__(self, actor: Any) -> None:
        super().__init__(NO_DESCRIPTOR, NO_DESCRIPTOR, FromAgent)
        self._actor = actor
        self._number = 0
        self._heard = b""
        self._hearing: Future[bytes | None] = actor.hear.remote().future()
        self.why = ""
        """Why the actor says nothing any more."""

    def _write(self, block: memoryview) -> int:
        self._actor.tell.remote(self._number, bytes(block))
        self._number += 1
        return len(block)

    def _read(self, limit: int) -> bytes:
        if not self._heard and self._hearing.done():
            self._take()
        if not self._heard:
            if self.why:
                return b""
            raise BlockingIOError(errno.EAGAIN, "nothing was said")
        block, self._heard = self._heard[:limit], self._heard[limit:]
        return block

    def _take(self) -> None:
        try:
            data = self._hearing.result()
        except Exception as error:
            self.why = f"its actor died ({_cause(error)})"
            return
        if data is None:
            self.why = "its agent ended"
            return
        self._heard = data
        self._hearing = self._actor.hear.remote().future()


class ActorLine(Line):
    """One actor, from when it is there to its end."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._own: ActorChannel = ActorChannel(actor)
        self._is_draining = self._has_left = False
        super().__init__(self._own)

    def drain(self) -> None:
        """Has the worker there leave the job, once: its node is about to end."""
        if not self._is_draining:
            self._is_draining = True
            self._actor.leave.remote()

    def listen(self) -> list[FromAgent]:
        """What the agent has said since the last time."""
        heard = super().listen()
        has_ended = any(isinstance(message, Ended) for message in heard)
        self._has_left = self._has_left or (self._is_draining and has_ended)
        return heard

    def problem(self) -> str | None:
        """Why nothing comes over this line any more; None: it is well."""
        return "its node is about to end" if self._has_left else super().problem()

    def close(self) -> None:
        """Ends the actor, and with it the agent and its worker."""
        import ray

        with contextlib.suppress(Exception):  # it may be dead, or its whole cluster
            ray.kill(self._actor)

    def _why_ended(self) -> str:
        return self._own.why or super()._why_ended()


def _cause(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if "dead because" in line or "cause" in line.lower()]
    return (said or lines or [type(error).__name__])[0][:200]
