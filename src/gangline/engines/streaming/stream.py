# SPDX-License-Identifier: Apache-2.0
"""Sends the event logs of this machine's workers to the coordinator of the job that they joined.

A thread of the launcher reads what workers have written to their logs: a training step costs that
nothing, and what a worker wrote before it was killed is sent, too. The coordinator says how far each
log has come, so a break of either side costs time only. The logs here stay what they are.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from gangline.engines.streaming.sentfiles import SentFiles
from gangline.files.tls import client_context
from gangline.files.tokens import read_token
from gangline.protocol.streaming import MAX_SENT_BYTES, Chunk, EventsAnswer, EventsRequest
from gangline.spec.errors import GanglineError
from gangline.worker.line.refinding import coordinator_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gangline.engines.job import Job

INTERVAL_S = 1.0
"""How often the logs are looked at."""
ALIVE_S = 1.5
"""How often the coordinator hears of this machine, where there is nothing to send."""
PACE_S = 0.05
"""Between two requests while there is more to send: the coordinator has others to hear, too."""
FINISH_S = 30.0
"""How long the launcher waits for the rest to be sent, as long as that goes on."""
STALLED_S = 5.0
"""How long it waits without any going on."""
AWAY_S = 10.0
"""A coordinator that is away for less is not worth a word: it may just be started again."""
_TIMEOUT_S = 5.0
_MAX_WAIT_S = 5.0
_MAX_ANSWER_BYTES = 1 << 20
_NUM_CLOCKS = 16
_OK, _TOO_MANY = 200, 429


class Refusal(Exception):
    """The coordinator, or nobody, took what was sent; says why."""


class Line:
    """The way to the coordinator: one connection, made anew where it is lost."""

    def __init__(self, find_url: Callable[[], str], *, token: Path, authority: str | None) -> None:
        self._find_url = find_url
        self._token = token
        self._authority = authority
        self._open: http.client.HTTPConnection | None = None
        self._headers: dict[str, str] = {}

    def post(self, request: EventsRequest) -> EventsAnswer:
        """What the coordinator answers. Raises Refusal, and OSError where it is away."""
        try:
            line = self._connected()
            line.request("POST", "/api/events", msgspec.json.encode(request), self._headers)
            response = line.getresponse()
            body = response.read(_MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException, GanglineError) as error:
            self.close()
            raise OSError(None, str(error) or type(error).__name__) from error
        if response.status != _OK:
            if response.will_close:
                self.close()
            told = body.decode(errors="replace").strip()[:500] or response.reason
            raise Refusal("" if response.status == _TOO_MANY else told)
        try:
            return msgspec.json.decode(body, type=EventsAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal(f"what answers is no coordinator: {error}") from error

    def close(self) -> None:
        """Ends the connection; the next request makes another."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _connected(self) -> http.client.HTTPConnection:
        if self._open is None:
            url = urlsplit(self._find_url())
            host, port = url.hostname or "", url.port or 0
            if url.scheme == "wss":
                context = client_context(self._authority)
                self._open = http.client.HTTPSConnection(
                    host, port, timeout=_TIMEOUT_S, context=context
                )
            else:
                self._open = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
            self._headers = {
                "Authorization": f"Bearer {read_token(self._token)}",
                "Content-Type": "application/json",
            }
        return self._open


class Sender:
    """Brings logs to the coordinator, one request at a time."""

    def __init__(self, files: SentFiles, post: Callable[[EventsRequest], EventsAnswer], key: str):
        self._files = files
        self._post = post
        self._key = key
        self._clocks: deque[tuple[float, float]] = deque(maxlen=_NUM_CLOCKS)
        """How long a request took, and how far our clock was off by its answer."""
        self._asked_s = float("-inf")
        self.is_over = False
        """Whether the coordinator has all, and knows that nothing will follow."""

    def send(self, *, is_final: bool = False) -> bool:
        """Sends some of what is there; whether there is more. Raises as the line does."""
        if not self._clocks:
            self._ask((), is_last=False)
        chunks = self._files.next_chunks(is_final=is_final)
        if chunks:
            is_taken = self._ask(chunks, is_last=False)
            return is_taken and sum(len(one.data) for one in chunks) > MAX_SENT_BYTES // 2
        if is_final or time.monotonic() - self._asked_s > ALIVE_S:
            self._ask((), is_last=is_final)
        self.is_over = is_final
        return False

    @property
    def ahead_s(self) -> float:
        """How far the coordinator's clock is ahead, by the quickest of the last answers."""
        took_s, ahead_s = min(self._clocks, default=(0.0, 0.0))
        return ahead_s if abs(ahead_s) > took_s else 0.0

    def _ask(self, chunks: tuple[Chunk, ...], *, is_last: bool) -> bool:
        """Asks the coordinator to take these; whether it says anything new of how far it is."""
        asked_s, begun_s = time.time(), time.monotonic()
        answer = self._post(
            EventsRequest(key=self._key, ahead_s=self.ahead_s, chunks=chunks, is_last=is_last)
        )
        took_s = time.monotonic() - begun_s
        self._asked_s = begun_s
        self._clocks.append((took_s, answer.now - asked_s - took_s / 2))
        return self._files.note(answer.received)


class EventStream:
    """Sends in the background until it is told to finish."""

    def __init__(self, job: Job, key: str) -> None:
        self._files = SentFiles(job.run_dir)
        launch = job.launches()[0]
        authority = job.config.wire.authority if job.tls is None else job.tls.authority
        self._line = Line(lambda: coordinator_of(launch), token=job.token_file, authority=authority)
        self._sender = Sender(self._files, self._line.post, key)
        self._ending = threading.Event()
        self._failing_since_s: float | None = None
        self._problem = self._told = ""
        self._num_failures = 0
        self._thread = threading.Thread(target=self._run, name="gangline-events", daemon=True)
        self._thread.start()

    def take_news(self) -> str:
        """What keeps the logs from being sent, once for each reason; empty: nothing new."""
        problem = self._problem
        if problem in ("", self._told):
            return ""
        self._told = problem
        return (
            f"the events of this machine do not reach the coordinator, and are kept here: {problem}"
        )

    def finish(self) -> str:
        """Sends the rest, for which nothing more must be written; what could not be sent, if so."""
        self._ending.set()
        self._thread.join(FINISH_S + 2 * _TIMEOUT_S)
        left = self._files.num_unsent()
        if not left or self._sender.is_over:
            return ""
        return (
            f"{left} bytes of this machine's event logs have not reached the coordinator "
            f"({self._problem or 'there was no time'}). They are kept in {self._files.folder}: copy "
            "worker-*.jsonl from there into the events folder of the run on the first machine"
        )

    def _run(self) -> None:
        while not self._ending.is_set():
            self._ending.wait(self._next_wait_s(is_final=False))
        begun_s = progress_s = time.monotonic()
        unsent = self._files.num_unsent()
        while self._files.has_workers and not self._sender.is_over:
            wait_s = self._next_wait_s(is_final=True)
            now, left = time.monotonic(), self._files.num_unsent()
            if left < unsent:
                unsent, progress_s = left, now
            if now - progress_s > STALLED_S or now - begun_s > FINISH_S:
                break
            time.sleep(0.0 if self._sender.is_over else wait_s)
        self._line.close()

    def _next_wait_s(self, *, is_final: bool) -> float:
        """Sends something, and says how long to wait before the next."""
        try:
            has_more = self._sender.send(is_final=is_final)
        except Refusal as error:
            self._fail(str(error))
            return min(INTERVAL_S, STALLED_S / 10) if is_final else INTERVAL_S
        except OSError as error:
            since = self._failing_since_s
            is_long = since is not None and time.monotonic() - since > AWAY_S
            self._fail(error.strerror or str(error) if is_long or is_final else "")
            if is_final:
                return PACE_S * 4
            return min(_MAX_WAIT_S, INTERVAL_S * 2.0 ** min(self._num_failures, 8))
        self._failing_since_s, self._num_failures, self._problem = None, 0, ""
        return PACE_S if has_more or is_final else INTERVAL_S

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._num_failures += 1
        if self._failing_since_s is None:
            self._failing_since_s = time.monotonic()
