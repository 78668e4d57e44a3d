# SPDX-License-Identifier: Apache-2.0
"""The coordinator's one port: a WebSocket for workers, HTTP for people; a token for everything."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import threading
from typing import TYPE_CHECKING

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from gangline.runtime.coordinator.status import LeaveRequest
from gangline.runtime.messages import (
    MAX_MESSAGE_BYTES,
    FromCoordinator,
    Hello,
    Refused,
    decode_from_worker,
    encode,
)
from gangline.spec.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send
    from starlette.websockets import WebSocket

    from gangline.runtime.coordinator.hub import Hub, Outgoing

HELLO_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 10.0
_TICK_S = 0.05
_POLICY_VIOLATION = 1008
_CONFLICT = 409


class TokenGate:
    """Lets nobody past who does not bring the run's token."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_known(scope):
            refusal = Response("the run's token is missing or wrong\n", status_code=401)
            await refusal(scope, receive, send)
        elif scope["type"] == "websocket" and not self._is_known(scope):
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await self._app(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        return hmac.compare_digest(headers.get(b"authorization", b""), self._expected)


class Desk:
    """Talks with the connected workers on behalf of the hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._queues: dict[int, asyncio.Queue[FromCoordinator]] = {}

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Keeps watch while the server runs."""
        watching = asyncio.create_task(self.keep_watch())
        yield
        watching.cancel()

    async def status(self, request: Request) -> Response:
        document = msgspec.json.encode(self._hub.status())
        return Response(document, media_type="application/json")

    async def leave(self, request: Request) -> Response:
        """Somebody wants a worker to leave the job."""
        try:
            asked = msgspec.json.decode(await request.body(), type=LeaveRequest)
            self._deliver(self._hub.ask_to_leave(asked.worker))
        except (msgspec.DecodeError, UsageError) as error:
            return Response(f"{error}\n", status_code=_CONFLICT)
        return Response(b"{}", media_type="application/json")

    async def worker(self, websocket: WebSocket) -> None:
        """One worker's connection, from its hello to its end."""
        await websocket.accept()
        worker = await self._greet(websocket)
        if worker is None:
            return
        queue = self._queues[worker]
        sender = asyncio.create_task(self._send_all(websocket, queue))
        try:
            while True:
                message = decode_from_worker(await websocket.receive_bytes())
                self._deliver(self._hub.receive(worker, message))
        except (WebSocketDisconnect, RuntimeError):
            pass  # the worker's end or its network; who it was is known, and it may come back
        except (msgspec.DecodeError, UsageError, KeyError) as error:
            await self._refuse(websocket, f"worker {worker} sent what nobody can read: {error}")
        finally:
            sender.cancel()
            if self._queues.get(worker) is queue:
                del self._queues[worker]
                self._hub.disconnect(worker)
                self._deliver(self._hub.tick())

    async def keep_watch(self) -> None:
        """Lets the hub look around, some times per second."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._deliver(self._hub.tick())

    async def _greet(self, websocket: WebSocket) -> int | None:
        try:
            payload = await asyncio.wait_for(websocket.receive_bytes(), HELLO_TIMEOUT_S)
            hello = decode_from_worker(payload)
            if not isinstance(hello, Hello):
                raise UsageError(f"the first message must be a hello, not {type(hello).__name__}")
            worker, outgoing = self._hub.connect(hello)
        except (TimeoutError, WebSocketDisconnect, RuntimeError):
            with contextlib.suppress(RuntimeError):
                await websocket.close(_POLICY_VIOLATION)
            return None
        except (KeyError, msgspec.DecodeError, UsageError) as error:
            await self._refuse(websocket, str(error))
            return None
        self._queues[worker] = asyncio.Queue()
        self._deliver(outgoing)
        return worker

    def _deliver(self, outgoing: list[Outgoing]) -> None:
        for worker, message in outgoing:
            queue = self._queues.get(worker)
            if queue is not None:  # who is away is told when it comes back
                queue.put_nowait(message)

    async def _send_all(self, websocket: WebSocket, queue: asyncio.Queue[FromCoordinator]) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await websocket.send_bytes(encode(await queue.get()))

    async def _refuse(self, websocket: WebSocket, reason: str) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await websocket.send_bytes(encode(Refused(reason=reason)))
            await websocket.close(_POLICY_VIOLATION)


class CoordinatorServer:
    """Serves a hub on one port, in the calling thread (`run`) or in one of its own (`start`)."""

    def __init__(self, hub: Hub, *, token: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self.hub = hub
        desk = Desk(hub)
        routes = [
            Route("/api/status", desk.status),
            Route("/api/leave", desk.leave, methods=["POST"]),
            WebSocketRoute("/ws/worker", desk.worker),
        ]
        app = TokenGate(Starlette(routes=routes, lifespan=desk.lifespan), token=token)
        self._socket = _bind(host, port)
        self.url = f"ws://{host}:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                lifespan="on",
                ws="websockets-sansio",
                ws_max_size=MAX_MESSAGE_BYTES,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread: threading.Thread | None = None

    def run(self, on_ready: Callable[[str], None] | None = None) -> None:
        """Serves until the process is told to stop."""
        if on_ready is not None:
            on_ready(self.url)
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Serves in a thread of its own."""
        serve = self._server.serve(sockets=[self._socket])
        self._thread = threading.Thread(
            target=lambda: asyncio.run(serve), name="gangline-coordinator", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and closes the port."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_START_TIMEOUT_S)
            self._thread = None
        self._socket.close()


def _bind(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
