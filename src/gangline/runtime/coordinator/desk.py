# SPDX-License-Identifier: Apache-2.0
"""Talks with workers and people on behalf of the hub."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from gangline.runtime.coordinator.hub import OVER
from gangline.runtime.coordinator.limits import Bucket, Limits
from gangline.runtime.coordinator.openapi import document
from gangline.runtime.coordinator.sanity import check_message
from gangline.runtime.coordinator.status import (
    BusyRequest,
    CertificateRequest,
    LeaveRequest,
    ReplanRequest,
    SyncRequest,
)
from gangline.runtime.coordinator.survey import Survey
from gangline.runtime.messages import (
    FromCoordinator,
    FromSurveyor,
    FromWorker,
    Hello,
    Refused,
    decode_from_worker,
    encode,
)
from gangline.spec.errors import UsageError
from gangline.spec.lifeline import ProcessEnded
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.websockets import WebSocket

    from gangline.runtime.certificates import Authority
    from gangline.runtime.coordinator.federation import Federation
    from gangline.runtime.coordinator.hub import Outgoing
    from gangline.runtime.coordinator.lifeline import Lifeline
    from gangline.spec.address import WireAddress

T = TypeVar("T")

HELLO_TIMEOUT_S = 10.0
_TICK_S = 0.05
_POLICY_VIOLATION = 1008
_BAD_REQUEST, _CONFLICT = 400, 409
_MAX_REASON = 2000
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_log = logging.getLogger("gangline.coordinator")


class Desk:
    """Reads what comes, asks the hub, and delivers what it says."""

    def __init__(
        self,
        hub: Federation,
        *,
        limits: Limits,
        authority: Authority | None,
        lifeline: Lifeline | None = None,
    ) -> None:
        self._hub = hub
        self._lifeline = lifeline
        self._is_dissolved = False
        self._limits = limits
        self._authority = authority
        self._queues: dict[int, asyncio.Queue[FromCoordinator]] = {}
        self._addresses: dict[int, WireAddress] = {}
        self._survey: Survey | None = None
        self._stumbled: set[tuple[int, str, str]] = set()
        """Which errors of the hub are in the log already."""
        self._deaf: set[int] = set()
        """Workers whose connection is to be closed, as they do not read what they are sent."""

    @property
    def routes(self) -> list[BaseRoute]:
        """What can be asked for."""
        return [
            Route("/openapi.json", self.openapi),
            Route("/api/status", self.status),
            Route("/api/leave", self.leave, methods=["POST"]),
            Route("/api/replan", self.replan, methods=["POST"]),
            Route("/api/sync", self.sync, methods=["POST"]),
            Route("/api/survey", self.survey, methods=["GET", "POST"]),
            Route("/api/busy", self.busy, methods=["POST"]),
            Route("/api/certificate", self.certificate, methods=["POST"]),
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
        return Response(msgspec.json.encode(self._hub.status()), media_type="application/json")

    async def leave(self, request: Request) -> Response:
        """Somebody wants a worker to leave the job."""
        return await self._order(
            request, LeaveRequest, lambda asked: self._hub.ask_to_leave(asked.worker)
        )

    async def busy(self, request: Request) -> Response:
        """Somebody beside a worker says that it computes."""

        def see(asked: BusyRequest) -> list[Outgoing]:
            self._hub.see_busy(asked.worker, asked.pid)
            return []

        return await self._order(request, BusyRequest, see)

    async def replan(self, request: Request) -> Response:
        """Somebody wants the job to exchange in another structure."""
        return await self._order(request, ReplanRequest, self._hub.ask_structure)

    async def sync(self, request: Request) -> Response:
        """Somebody wants groups to be held together in another way."""
        return await self._order(
            request, SyncRequest, lambda asked: self._hub.set_sync(parse_sync(asked.sync))
        )

    async def _order(
        self, request: Request, kind: type[T], carry_out: Callable[[T], list[Outgoing]]
    ) -> Response:
        """Has an operator's order carried out, or says why it is not."""
        try:
            self._deliver(carry_out(msgspec.json.decode(await request.body(), type=kind)))
        except _UNREADABLE as error:
            return PlainTextResponse(f"{error}\n", status_code=_BAD_REQUEST)
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", status_code=_CONFLICT)
        return Response(b"{}", media_type="application/json")

    async def survey(self, request: Request) -> Response:
        """How far the survey of links is; somebody may begin one."""
        now = time.monotonic()
        try:
            if request.method == "POST":
                if self._survey is not None and not self._survey.is_over:
                    raise UsageError("the links are being measured already; ask how far that is")
                there = {one: self._addresses[one] for one in self._queues}
                self._survey = Survey(there, now)
                self._deliver(self._survey.begin())
            if self._survey is None:
                raise UsageError("nobody has had the links measured; `gangline probe RUN_DIR` does")
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", status_code=_CONFLICT)
        found = msgspec.json.encode(self._survey.status())
        return Response(found, media_type="application/json")

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
                self._hub.disconnect(worker)
                self._deliver(self._hub.tick())

    async def keep_watch(self) -> None:
        """Lets the hub look around, some times per second."""
        last = ""
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                if self._lifeline is not None:
                    self._follow(self._lifeline)
                self._deliver(self._hub.tick())
                if self._survey is not None:
                    self._deliver(self._survey.tick(time.monotonic()))
            except Exception as error:  # the watch must go on, whatever one worker has said
                if repr(error) != last:
                    last = repr(error)
                    _log.exception("the hub could not look around")

    def _follow(self, lifeline: Lifeline) -> None:
        """Does what the launcher says, and tells it how the job stands."""
        standing = self._hub.standing()
        # Said one look later than it was done, so that the messages are on their way.
        if self._is_dissolved:
            standing = msgspec.structs.replace(standing, is_dissolved=True)
        lifeline.beat(standing, time.monotonic())
        for order in lifeline.take_orders():
            if isinstance(order, ProcessEnded):
                self._deliver(self._hub.note_ended(order))
            else:
                self._deliver(self._hub.dissolve(order.reason, own=order.own))
                self._is_dissolved = True

    async def _listen(self, websocket: WebSocket, worker: int) -> None:
        limits = self._limits
        bucket = Bucket(limits.messages_per_s, burst=limits.message_burst, now=time.monotonic())
        while True:
            payload = await _read(websocket)
            if payload is None:
                return  # the worker's end or its network; who it was is known, and it may come back
            message = decode_from_worker(payload)
            check_message(message)
            self._deliver(self._hear(worker, message))
            if worker in self._deaf:
                self._deaf.discard(worker)
                raise UsageError(f"{limits.unread} messages to it were not read")
            if not bucket.take(time.monotonic()):
                # Not read, it waits in the network's buffers and then at the worker.
                await asyncio.sleep(bucket.missing_s(time.monotonic()))

    def _hear(self, worker: int, message: FromWorker) -> list[Outgoing]:
        """What follows from a message. One over which the hub stumbles is logged, and left out."""
        try:
            if isinstance(message, FromSurveyor):
                return self._hear_surveyor(worker, message)
            return self._hub.receive(worker, message)
        except UsageError:
            raise
        except Exception as error:
            told = (worker, type(message).__name__, repr(error))
            if told not in self._stumbled:
                self._stumbled.add(told)
                _log.exception("could not deal with %r of worker %d", message, worker)
            return []

    def _hear_surveyor(self, worker: int, message: FromSurveyor) -> list[Outgoing]:
        if self._survey is None:
            return []
        return self._survey.receive(worker, message, time.monotonic())

    async def _greet(self, websocket: WebSocket) -> int | None:
        try:
            payload = await asyncio.wait_for(_read(websocket), HELLO_TIMEOUT_S)
            if payload is None:
                return None
            hello = decode_from_worker(payload)
            if not isinstance(hello, Hello):
                raise UsageError(f"the first message must be a hello, not {type(hello).__name__}")
            check_message(hello)
            worker, outgoing = self._hub.connect(hello)
        except TimeoutError:
            with contextlib.suppress(RuntimeError):
                await websocket.close(_POLICY_VIOLATION)
            return None
        except (*_UNREADABLE, UsageError) as error:
            await self._refuse(websocket, str(error))
            return None
        except Exception as error:
            _log.exception("could not greet a worker: %r", payload)
            await self._refuse(websocket, f"the coordinator failed: {error!r}")
            return None
        self._queues[worker] = asyncio.Queue(self._limits.unread)
        self._addresses[worker] = hello.address
        self._deaf.discard(worker)
        self._deliver(outgoing)
        return worker

    def _deliver(self, outgoing: list[Outgoing]) -> None:
        for worker, message in outgoing:
            queue = self._queues.get(worker)
            if queue is None:  # who is away is told when it comes back
                continue
            try:
                queue.put_nowait(message)
            except asyncio.QueueFull:
                self._deaf.add(worker)

    async def _send_all(self, websocket: WebSocket, queue: asyncio.Queue[FromCoordinator]) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await websocket.send_bytes(encode(await queue.get()))

    async def _refuse(self, websocket: WebSocket, reason: str) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            refusal = Refused(reason=reason[:_MAX_REASON], is_left_behind=reason == OVER.reason)
            await websocket.send_bytes(encode(refusal))
            await websocket.close(_POLICY_VIOLATION)


async def _read(websocket: WebSocket) -> bytes | None:
    """The next message; None where the connection has ended."""
    try:
        return await websocket.receive_bytes()
    except (WebSocketDisconnect, RuntimeError):
        return None
    except KeyError as error:
        raise UsageError("messages are bytes, not text") from error
