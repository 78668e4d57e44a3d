# SPDX-License-Identifier: Apache-2.0
"""The coordinator's one port: a WebSocket for workers, HTTP for people; a token for everything."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

from gangline.coordinator.server.access import AccessGate, Keys
from gangline.coordinator.server.dashboard import Dashboard
from gangline.coordinator.server.desk import Desk
from gangline.coordinator.server.entrance import Entrance
from gangline.coordinator.server.limits import Limits
from gangline.coordinator.server.reception import Reception
from gangline.files.invitations import Invitations
from gangline.protocol.messages import MAX_MESSAGE_BYTES
from gangline.spec.errors import LaunchError
from gangline.spec.machines.link import bracketed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gangline.coordinator.server.driver import Driver
    from gangline.coordinator.server.lifeline import Lifeline
    from gangline.coordinator.server.until_done import UntilDone
    from gangline.files.tls import ServerTls

_START_TIMEOUT_S = 10.0
_PING_S = 20.0
"""How often a quiet WebSocket is asked for a sign of life, and how long it may take to give it."""


class CoordinatorServer:
    """Serves a coordinator on one port, in the calling thread (`run`) or in its own (`start`)."""

    def __init__(
        self,
        driver: Driver,
        *,
        keys: Keys,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ServerTls | None = None,
        limits: Limits | None = None,
        lifeline: Lifeline | UntilDone | None = None,
        run_dir: Path | None = None,
        may_kill: bool = False,
    ) -> None:
        """`lifeline` leads to the launcher that started this process, if one did.

        The run folder keeps the invitations; without one they are forgotten with the server. With
        `may_kill`, operators may kill workers of this machine.
        """
        self.driver = driver
        limits = limits or Limits()
        self._socket = _bind(host, port)
        scheme = "ws" if tls is None else "wss"
        self.url = f"{scheme}://{bracketed(host)}:{self._socket.getsockname()[1]}"
        desk = Desk(
            driver,
            limits=limits,
            authority=None if tls is None else tls.authority,
            lifeline=lifeline,
        )
        self.entrance = Entrance(
            self._socket, limits=limits, tls=None if tls is None else tls.context
        )
        self._dashboard = Dashboard(
            driver, secret=keys.operator, handle=desk.handle, may_kill=may_kill
        )
        invitations = Invitations(run_dir)
        reception = Reception(
            invitations,
            run=driver.run,
            token=keys.worker,
            authority="" if tls is None else tls.authority_pem,
            run_dir=run_dir,
        )
        app = AccessGate(
            Starlette(
                routes=[*desk.routes, *reception.routes, *self._dashboard.routes],
                lifespan=desk.lifespan,
            ),
            keys=keys,
            entrance=self.entrance,
            limits=limits,
            invitations=invitations,
            door=self._dashboard.door,
        )
        self._server = _GuardedServer(
            _config(app, limits), self.entrance, on_end=self._dashboard.feed.close
        )
        self._thread: threading.Thread | None = None

    def run(self, on_ready: Callable[[str], None] | None = None) -> None:
        """Serves until the process is told to stop."""
        if on_ready is not None:
            on_ready(self.url)
        try:
            self._server.run(sockets=[])
        finally:
            self._close()

    def end(self) -> None:
        """Has `run` return, soon."""
        self._server.should_exit = True

    def start(self) -> None:
        """Serves in a thread of its own."""
        serve = self._server.serve(sockets=[])
        self._thread = threading.Thread(
            target=lambda: asyncio.run(serve), name="gangline-coordinator", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and closes the port."""
        self.end()
        if self._thread is not None:
            self._thread.join(_START_TIMEOUT_S)
            self._thread = None
        self._close()

    def _close(self) -> None:
        self._socket.close()
        self.driver.close()


class _GuardedServer(uvicorn.Server):
    """uvicorn behind our own entrance: it knows no limits on who has not sent a request yet."""

    def __init__(
        self, config: uvicorn.Config, entrance: Entrance, *, on_end: Callable[[], None]
    ) -> None:
        """`on_end` ends what would otherwise go on for as long as somebody listens."""
        super().__init__(config)
        self._entrance = entrance
        self._on_end = on_end
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._accepting = asyncio.create_task(self._entrance.serve(self._make_protocol))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        await super().shutdown(sockets=[])

    def _make_protocol(self) -> asyncio.Protocol:
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def _config(app: AccessGate, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="critical",  # what strangers send must not fill the disk; the gate logs the rest
        access_log=False,
        lifespan="on",
        http="h11",
        h11_max_incomplete_event_size=limits.header_bytes,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PING_S,
        ws_per_message_deflate=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )


def _bind(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if host == "::":  # all interfaces, of IPv4 too
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise LaunchError(
            f"the coordinator cannot listen on {host}:{port}: {error.strerror}; choose another "
            "--host or --port (0 takes a free one)"
        ) from error
    return listening
