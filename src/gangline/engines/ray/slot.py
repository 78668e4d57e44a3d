# SPDX-License-Identifier: Apache-2.0
"""What a worker's actor does: it runs an agent beside itself, and carries what this says and hears.

The agent is the one that runs on ssh hosts. It starts the worker, sends back what this writes, and
ends it when its line is closed: so when this actor dies, however it does, nothing of it is left.
Secrets come as arguments of `tell`, which no page of Ray's shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import psutil

from gangline.engines.ray.services.desk import Desk
from gangline.protocol.launch import LAUNCH_VARIABLE

if TYPE_CHECKING:
    from asyncio.subprocess import Process

HEAR_S = 1.0
"""How long `hear` waits for something to be said."""
_BLOCK_BYTES = 1 << 20


class Slot:
    """One place for a worker. Ray makes an actor of it, whose methods are called by the launcher."""

    def __init__(self, services: dict[str, Any]) -> None:
        """`services` are the actors that the worker may ask for something, by name."""
        self._services = services
        self._agent: Process | None = None
        self._desk: Desk | None = None
        self._untold: dict[int, bytes] = {}
        self._next = 0
        self._folder = tempfile.TemporaryDirectory(prefix="gangline-")

    async def open(self) -> str:
        """Starts the agent; the id of the node that this is on."""
        import ray

        self._desk = Desk(self._folder.name, self._services)
        self._agent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gangline.engines.agent"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **self._desk.variables},
        )
        return str(ray.get_runtime_context().get_node_id())

    async def tell(self, number: int, data: bytes) -> None:
        """What the launcher says, in the order of the numbers."""
        assert self._agent is not None
        assert self._agent.stdin is not None
        self._untold[number] = data
        while self._next in self._untold:
            self._agent.stdin.write(self._untold.pop(self._next))
            self._next += 1
        with contextlib.suppress(ConnectionError):  # its end is heard by `hear`
            await self._agent.stdin.drain()

    async def hear(self) -> bytes | None:
        """What the agent has said, after a while also if that is nothing; None: it has ended."""
        assert self._agent is not None
        assert self._agent.stdout is not None
        try:
            data = await asyncio.wait_for(self._agent.stdout.read(_BLOCK_BYTES), HEAR_S)
        except TimeoutError:
            return b""
        return data or None

    async def leave(self) -> None:
        """Has the worker leave the job politely: this node is about to end."""
        for pid in self._workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _workers(self) -> list[int]:
        """The processes that the agent started as workers."""
        assert self._agent is not None
        found = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._agent.pid).children():
                with contextlib.suppress(psutil.Error):
                    if LAUNCH_VARIABLE in child.environ():
                        found.append(child.pid)
        return found
