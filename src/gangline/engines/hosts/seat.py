# SPDX-License-Identifier: Apache-2.0
"""One host of a run: reached, told what is run, given its files; tried again when it is lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gangline.engines.hosts.introduction import coordinator_from
from gangline.protocol.agents import (
    AGENT_VERSION,
    MAX_BACKLOG_BYTES,
    Brief,
    Briefed,
    End,
    Ended,
    Here,
    Met,
    Ready,
    Unfit,
    Wrote,
)
from gangline.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import msgspec

    from gangline.engines.hosts.line import Line
    from gangline.protocol.agents import File
    from gangline.spec.machines.hosts import Host

FIRST_RETRY_S, MOST_RETRY_S = 2.0, 30.0
"""How long after a failure a host is tried again: at first, and at most."""


class Seat:
    """A host and the line to it, if there is one at present."""

    def __init__(
        self,
        host: Host,
        *,
        brief: Brief,
        files: Callable[[], Iterator[File]],
        listen: str,
        make_line: Callable[[], Line | None],
    ) -> None:
        self.host = host
        self.here: Here | None = None
        """What its agent said of it."""
        self.is_ready = False
        """Whether workers can be started there."""
        self.problem: str | None = None
        """Why they cannot; None: nothing is known against it."""
        self.is_met = False
        """Whether it knows where the coordinator is."""
        self.calls_out = False
        """Whether others do not get through to it, so that it calls them."""
        self.workers: set[int] = set()
        """Those that run there, or are about to."""
        self._brief, self._files, self._listen = brief, files, listen
        self._make_line = make_line
        self._line: Line | None = None
        self._feed: Iterator[File] | None = None
        self._retry_at_s = 0.0
        self._is_ending = False
        self._wait_s = FIRST_RETRY_S

    @property
    def is_tried(self) -> bool:
        """Whether it has answered, or failed to, once."""
        return self.is_ready or self.problem is not None

    def say(self, message: msgspec.Struct) -> None:
        """Tells the agent something, if there is one."""
        if self._line is not None:
            self._line.say(message)

    def look(self) -> list[Wrote | Ended]:
        """Goes on with whatever is to be done next; what workers wrote, and who ended."""
        if self._line is None:
            if self._is_ending or time.monotonic() < self._retry_at_s:
                return []
            self._line = self._make_line()
            if self._line is None:
                return []
        found: list[Wrote | Ended] = []
        for message in self._line.listen():
            if isinstance(message, Wrote | Ended):
                if message.worker in self.workers:  # a host speaks of its own workers only
                    found.append(message)
            elif self._line is not None:
                self._hear(message)
        if self._line is not None:
            self._bring(self._line)
            problem = self._line.problem()
            if problem is not None:
                self._fail(problem)
        return found

    def end(self) -> None:
        """Has the agent end its workers, and then itself; it is not called again."""
        self._is_ending = True
        self.say(End())

    def close(self) -> Line | None:
        """Hangs up for good; the line, whose end may be waited for."""
        line, self._line = self._line, None
        self._is_ending = True
        self.is_ready = False
        if line is not None:
            line.close()
        return line

    def _hear(self, message: msgspec.Struct) -> None:
        match message:
            case Here():
                self.here = message
                problem = misfit(self.host, message, listen=self._listen)
                if problem is not None:
                    self._fail(problem)
                else:
                    self.say(self._brief)
                    self._feed = self._files()
            case Ready():
                self.is_ready, self.problem = True, None
                self._wait_s = FIRST_RETRY_S
            case Met(calls_out=calls_out):
                self.is_met, self.calls_out = True, calls_out
            case Unfit(reason=reason):
                self._fail(reason)
            case _:
                pass

    def _bring(self, line: Line) -> None:
        """Sends files while the line takes them, and says when that was all."""
        while self._feed is not None and line.backlog < MAX_BACKLOG_BYTES:
            file = next(self._feed, None)
            if file is None:
                self._feed = None
                line.say(Briefed())
            else:
                line.say(file)

    def _fail(self, problem: str) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()
            line.await_end(time.monotonic())
        self.problem = problem
        self.is_ready = self.is_met = False
        self._feed = None
        self._retry_at_s = time.monotonic() + self._wait_s
        self._wait_s = min(2 * self._wait_s, MOST_RETRY_S)


def misfit(host: Host, here: Here, *, listen: str) -> str | None:
    """Why workers of this launcher cannot run on a host; None: they can."""
    if here.version != AGENT_VERSION or here.gangline != VERSION:
        return (
            f"it has gangline {here.gangline}, and this machine {VERSION}: install the same one for "
            f"{host.python} there"
        )
    if here.torch is None:
        return f"{host.python} has no torch there: install it"
    if coordinator_from(host, here, listen=listen) is None:
        return (
            "its ssh server does not say where the connection comes from: name the address at which it "
            "reaches this machine, by `coordinator` in the hosts file, or by --listen"
        )
    return None
