# SPDX-License-Identifier: Apache-2.0
"""Talks with workers and people on behalf of the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from gangline.coordinator.inputs import (
    Connected,
    Disconnected,
    Ordered,
    Said,
    SurveyAsked,
    Tick,
)
from gangline.coordinator.outgoing import OVER
from gangline.coordinator.outputs import Admitted, Refusal, Send, Stumbled
from gangline.coordinator.sanity import check_message
from gangline.coordinator.server import prometheus
from gangline.coordinator.server.events.door import EventsDoor
from gangline.coordinator.server.events.streams import Streams
from gangline.coordinator.server.limits import Bucket, Limits
from gangline.coordinator.server.openapi import document
from gangline.coordinator.server.orders import order_routes
from gangline.coordinator.server.reaching import CallBack
from gangline.protocol.lifeline import Dissolve
from gangline.protocol.messages import FromCoordinator, Hello, Refused, decode_from_worker, encode
from gangline.protocol.status import (
    CertificateRequest,
)
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.websockets import WebSocket

    from gangline.coordinator.inputs import Input
    from gangline.coordinator.outputs import Output
    from gangline.coordinator.server.driver import Driver
    from gangline.coordinator.server.lifeline import Lifeline
    from gangline.coordinator.server.until_done import UntilDone
    from gangline.files.certificates import Authority

HELLO_TIMEOUT_S = 10.0
_TICK_S = 0.05
_POLICY_VIOLATION = 1008
_BAD_REQUEST, _CONFLICT = 400, 409
_MAX_REASON = 2000
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Desk:
    """Reads what comes, tells the coordinator, and delivers what it says."""

    def __init__(
        self,
        driver: Driver,
        *,
        limits: Limits,
        authority: Authority | None,
        lifeline: Lifeline | UntilDone | None = None,
    ) -> None:
        self._driver = driver
        self._lifeline = lifeline
        self._is_dissolved = False
        self._limits = limits
        self._authority = authority
        self._streams = Streams(
            driver.run_dir,
            run=driver.run,
            machine_of=driver.coordinator.machine_of,
            limits=limits,
            tell=driver.write,
        )
        self._call_back = CallBack()
        self._queues: dict[int, asyncio.Queue[FromCoordinator]] = {}
        self._deaf: set[int] = set()
        """Workers whose connection is to be closed, as they do not read what they are sent."""

    @property
    def routes(self) -> list[BaseRoute]:
        """What can be asked for."""
        return [
            Route("/openapi.json", self.openapi),
            Route("/api/status", self.status),
            *order_routes(self.handle),
            Route("/metrics", self.metrics),
            Route("/api/survey", self.survey, methods=["GET", "POST"]),
            Route("/api/certificate", self.certificate, methods=["POST"]),
            Route("/api/events", EventsDoor(self._streams).post, methods=["POST"]),
            Route("/api/reach", self._call_back.answer),
            WebSocketRoute("/ws/worker", self.worker),
        ]

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Keeps watch while the server runs."""
        watching = asyncio.create_task(self.keep_watch())
        yield
        watching.cancel()

    # --- people ----------------------------------------------------------------------------------

    async def openapi(self, request: Request) -> Response:
        return Response(msgspec.json.encode(document()), media_type="application/json")

    async def status(self, request: Request) -> Response:
        found = self._driver.coordinator.status()
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        found = self._driver.coordinator.status()
        return Response(prometheus.to_text(found), media_type=prometheus.CONTENT_TYPE)

    async def survey(self, request: Request) -> Response:
        """How far the survey of links is; somebody may begin one."""
        try:
            if request.method == "POST":
                self.handle(SurveyAsked())
            found = self._driver.coordinator.survey_status()
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", status_code=_CONFLICT)
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def certificate(self, request: Request) -> Response:
        """A worker's machine wants a certificate for the links to the others."""
        try:
            asked = msgspec.json.decode(await request.body(), type=CertificateRequest)
            if self._authority is None:
                return PlainTextResponse(
                    "this run signs no certificates: bring one of your own, with --tls-cert and "
                    "--tls-key\n",
                    status_code=_CONFLICT,
                )
            signed = self._authority.sign(asked.request)
        except (*_UNREADABLE, UsageError) as error:
            return PlainTextResponse(f"{error}\n", status_code=_BAD_REQUEST)
        return Response(
            msgspec.json.encode({"certificate": signed.decode()}), media_type="application/json"
        )

    # --- workers ---------------------------------------------------------------------------------

    async def worker(self, websocket: WebSocket) -> None:
        """One worker's connection, from its hello to its end."""
        await websocket.accept()
        worker = await self._greet(websocket)
        if worker is None:
            return
        queue = self._queues[worker]
        sender = asyncio.create_task(self._send_all(websocket, queue))
        try:
            await self._listen(websocket, worker)
        except (*_UNREADABLE, UsageError) as error:
            # It costs this worker its connection, and nobody else anything.
            await self._refuse(
                websocket,
                f"worker {worker} sent what nobody can read: {error or type(error).__name__}",
            )
        finally:
            sender.cancel()
            if self._queues.get(worker) is queue:
                del self._queues[worker]
                self.handle(Disconnected(worker=worker))

    async def keep_watch(self) -> None:
        """Lets the coordinator look around, some times per second."""
        while True:
            await asyncio.sleep(_TICK_S)
            if self._lifeline is not None:
                self._follow(self._lifeline)
            self.handle(Tick())

    def _follow(self, lifeline: Lifeline | UntilDone) -> None:
        """Does what the launcher says, and tells it how the job stands."""
        standing = msgspec.structs.replace(
            self._driver.standing(), num_sending=self._streams.num_sending
        )
        # Said one look later than it was done, so that the messages are on their way.
        if self._is_dissolved:
            standing = msgspec.structs.replace(standing, is_dissolved=True)
        lifeline.beat(standing, time.monotonic())
        for order in lifeline.take_orders():
            self.handle(Ordered(order=order))
            self._is_dissolved = self._is_dissolved or isinstance(order, Dissolve)

    async def _listen(self, websocket: WebSocket, worker: int) -> None:
        limits = self._limits
        bucket = Bucket(limits.messages_per_s, burst=limits.message_burst, now=time.monotonic())
        while True:
            payload = await _read(websocket)
            if payload is None:
                return  # the worker's end or its network; who it was is known, and it may come back
            message = decode_from_worker(payload)
            check_message(message)
            self.handle(Said(worker=worker, message=message))
            if worker in self._deaf:
                self._deaf.discard(worker)
                raise UsageError(f"{limits.unread} messages to it were not read")
            if not bucket.take(time.monotonic()):
                # Not read, it waits in the network's buffers and then at the worker.
                await asyncio.sleep(bucket.missing_s(time.monotonic()))

    def handle(self, given: Input) -> None:
        """Tells the coordinator, and delivers what it says. Raises UsageError if that is a refusal."""
        left = self._driver.handle(given)
        self._deliver(left)
        for output in left:
            if isinstance(output, Refusal):
                raise UsageError(output.reason)

    async def _greet(self, websocket: WebSocket) -> int | None:
        try:
            payload = await asyncio.wait_for(_read(websocket), HELLO_TIMEOUT_S)
            if payload is None:
                return None
            hello = decode_from_worker(payload)
            if not isinstance(hello, Hello):
                raise UsageError(f"the first message must be a hello, not {type(hello).__name__}")
            check_message(hello)
        except TimeoutError:
            with contextlib.suppress(RuntimeError):
                await websocket.close(_POLICY_VIOLATION)
            return None
        except (*_UNREADABLE, UsageError) as error:
            await self._refuse(websocket, str(error))
            return None
        left = self._driver.handle(Connected(hello=hello))
        for output in left:
            if isinstance(output, Admitted):
                self._queues[output.worker] = asyncio.Queue(self._limits.unread)
                self._deaf.discard(output.worker)
                self._deliver(left)
                return output.worker
        await self._refuse(websocket, _why(left))
        return None

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            if not isinstance(output, Send):
                continue
            queue = self._queues.get(output.worker)
            if queue is None:  # who is away is told when it comes back
                continue
            try:
                queue.put_nowait(output.message)
            except asyncio.QueueFull:
                self._deaf.add(output.worker)

    async def _send_all(self, websocket: WebSocket, queue: asyncio.Queue[FromCoordinator]) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await websocket.send_bytes(encode(await queue.get()))

    async def _refuse(self, websocket: WebSocket, reason: str) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            refusal = Refused(reason=reason[:_MAX_REASON], is_left_behind=reason == OVER.reason)
            await websocket.send_bytes(encode(refusal))
            await websocket.close(_POLICY_VIOLATION)


def _why(outputs: list[Output]) -> str:
    """Why a worker was not admitted."""
    for output in outputs:
        if isinstance(output, Refusal):
            return output.reason
        if isinstance(output, Stumbled):
            return f"the coordinator failed: {output.error}"
    return "the coordinator has not said why"


async def _read(websocket: WebSocket) -> bytes | None:
    """The next message; None where the connection has ended."""
    try:
        return await websocket.receive_bytes()
    except (WebSocketDisconnect, RuntimeError):
        return None
    except KeyError as error:
        raise UsageError("messages are bytes, not text") from error
