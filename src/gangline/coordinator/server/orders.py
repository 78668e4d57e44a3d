# SPDX-License-Identifier: Apache-2.0
"""What may be ordered over HTTP: what is sent, and what the coordinator is told then."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gangline.coordinator.inputs import (
    CheckpointAsked,
    EndAsked,
    ExclusionAsked,
    LeaveAsked,
    PauseAsked,
    ReplanAsked,
    SeenBusy,
    SyncAsked,
)
from gangline.coordinator.kept.recording import check_recordable
from gangline.protocol.status import (
    BusyRequest,
    ExcludeRequest,
    LeaveRequest,
    PauseRequest,
    PlainRequest,
    ReplanRequest,
    SyncRequest,
)
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from gangline.coordinator.inputs import Input

T = TypeVar("T")
_BAD_REQUEST, _CONFLICT = 400, 409
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def order_routes(handle: Callable[[Input], None]) -> list[Route]:
    """One for each order; `handle` has it carried out, or raises UsageError."""

    def route(name: str, kind: type[T], to_input: Callable[[T], Input]) -> Route:
        async def answer(request: Request) -> Response:
            try:
                given = to_input(msgspec.json.decode(await request.body(), type=kind))
                check_recordable(given)
            except (*_UNREADABLE, UsageError) as error:
                return PlainTextResponse(f"{error}\n", status_code=_BAD_REQUEST)
            try:
                handle(given)
            except UsageError as error:
                return PlainTextResponse(f"{error}\n", status_code=_CONFLICT)
            return Response(b"{}", media_type="application/json")

        return Route(f"/api/{name}", answer, methods=["POST"])

    return [
        route("leave", LeaveRequest, lambda asked: LeaveAsked(worker=asked.worker)),
        route("replan", ReplanRequest, lambda asked: ReplanAsked(request=asked)),
        route("sync", SyncRequest, lambda asked: SyncAsked(sync=asked.sync)),
        route(
            "exclude",
            ExcludeRequest,
            lambda asked: ExclusionAsked(worker=asked.worker, is_out=asked.is_out),
        ),
        route("pause", PauseRequest, lambda asked: PauseAsked(is_paused=asked.is_paused)),
        route("checkpoint", PlainRequest, lambda _: CheckpointAsked()),
        route("end", PlainRequest, lambda _: EndAsked()),
        route("busy", BusyRequest, lambda asked: SeenBusy(worker=asked.worker, pid=asked.pid)),
    ]
