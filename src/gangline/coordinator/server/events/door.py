# SPDX-License-Identifier: Apache-2.0
"""Where other machines hand in their event logs over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import PlainTextResponse, Response

from gangline.coordinator.server.events.streams import NoRoomError, TooFastError
from gangline.protocol.streaming import EventsRequest
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from starlette.requests import Request

    from gangline.coordinator.server.events.streams import Streams

_BAD_REQUEST, _CONFLICT, _TOO_MANY, _NO_ROOM = 400, 409, 429, 507


class EventsDoor:
    """Reads what a machine sends, and answers how far its logs have come."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def post(self, request: Request) -> Response:
        """A machine's launcher sends what its logs have more."""
        try:
            asked = msgspec.json.decode(await request.body(), type=EventsRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return PlainTextResponse(f"{error}\n", status_code=_BAD_REQUEST)
        try:
            answer = self._streams.take(asked)
        except TooFastError as error:
            return PlainTextResponse(
                f"{error}\n", status_code=_TOO_MANY, headers={"Retry-After": "1"}
            )
        except NoRoomError as error:
            return PlainTextResponse(f"{error}\n", status_code=_NO_ROOM)
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", status_code=_CONFLICT)
        return Response(msgspec.json.encode(answer), media_type="application/json")
