# SPDX-License-Identifier: Apache-2.0
"""Attacks a coordinator on loopback, in a process of its own, to see that training goes on.

Run by path with nothing but the standard library, so that it starts in an instant:
`python -I flooding.py`, with a `Plan` as JSON on its standard input. It ends with its input, and
prints how often it did what.
"""

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

_HEAD = "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
_UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: {key}\r\n\r\n"
)
_BINARY, _MASKED = 0x82, 0x80


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Whom to attack, and how hard."""

    url: str
    rate_per_s: float = 200.0
    """Connections per second, of all kinds that end."""
    slow: int = 100
    """Connections that send their request byte by byte, and are opened again when they are cut."""
    token: str = "a guess"
    """With a worker's token, rubbish is sent on WebSockets as well."""


class Attack:
    """All that happens at once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        parts = urlsplit(plan.url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 0
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.slow):
                group.create_task(self._for_ever(self._trickle))
            while True:
                for kind in (self._knock, self._guess, self._babble, self._rave):
                    group.create_task(self._once(kind))
                    await asyncio.sleep(1 / self._plan.rate_per_s)

    async def _for_ever(self, kind: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._once(kind)
            await asyncio.sleep(0.2)

    async def _once(self, kind: Callable[[], Awaitable[None]]) -> None:
        try:
            await kind()
            self.counts[kind.__name__.strip("_")] += 1
        except (OSError, EOFError):
            self.counts["cut"] += 1

    @contextlib.asynccontextmanager
    async def _line(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def _knock(self) -> None:
        """Connects, and goes away."""
        async with self._line():
            pass

    async def _guess(self) -> None:
        """Asks with a wrong token."""
        async with self._line() as (reader, writer):
            writer.write((_HEAD.format(path="/api/status", token="a guess") + "\r\n").encode())
            await reader.readline()

    async def _babble(self) -> None:
        """Sends what is no request."""
        async with self._line() as (reader, writer):
            writer.write(os.urandom(2000))
            await reader.read(100)

    async def _rave(self) -> None:
        """Sends what is no message, on a worker's WebSocket."""
        async with self._line() as (reader, writer):
            key = base64.b64encode(os.urandom(16)).decode()
            head = _HEAD.format(path="/ws/worker", token=self._plan.token)
            writer.write((head + _UPGRADE.format(key=key)).encode())
            await reader.readuntil(b"\r\n\r\n")
            rubbish = os.urandom(100)
            writer.write(bytes([_BINARY, _MASKED | len(rubbish)]) + bytes(4) + rubbish)
            await reader.read(100)

    async def _trickle(self) -> None:
        """Sends its request so slowly that it never ends."""
        async with self._line() as (_, writer):
            for letter in _HEAD:
                writer.write(letter.encode())
                await writer.drain()
                await asyncio.sleep(0.5)


@contextlib.contextmanager
def flood(plan: Plan) -> Iterator[dict[str, int]]:
    """Attacks while the block runs; what was done is in the dictionary when it has ended."""
    process = subprocess.Popen(
        [sys.executable, "-I", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    counts: dict[str, int] = {}
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(plan)).encode() + b"\n")
        process.stdin.flush()
        yield counts
    finally:
        printed, _ = process.communicate()
        counts.update(json.loads(printed or b"{}"))


async def _main(plan: Plan) -> Counter[str]:
    attack = Attack(plan)
    running = asyncio.create_task(attack.run())
    await asyncio.to_thread(sys.stdin.read)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return attack.counts


if __name__ == "__main__":
    os.nice(5)
    done = asyncio.run(_main(Plan(**json.loads(sys.stdin.readline()))))
    sys.stdout.write(json.dumps(done))
