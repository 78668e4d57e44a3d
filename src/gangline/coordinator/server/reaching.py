# SPDX-License-Identifier: Apache-2.0
"""Whether the coordinator's machine reaches who asks: it calls back, at the address that it sees."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import PlainTextResponse, Response

from gangline.protocol.reaching import GREETING, try_port
from gangline.protocol.status import CalledBack

if TYPE_CHECKING:
    from starlette.requests import Request

CALL_S = 3.0
"""How long the call back may take."""
_MOST_AT_ONCE = 4
_BAD_REQUEST = 400
_MAPPED = "::ffff:"
_LEAST_PORT = 1024


class CallBack:
    """Answers who asks whether it is reached: nobody can have another address called than its own."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def answer(self, request: Request) -> Response:
        """Calls the port that is asked for."""
        port = request.query_params.get("port", "")
        if not port.isdecimal() or len(port) > 5 or not _LEAST_PORT <= int(port) < 1 << 16:
            said = f"port must be a number from {_LEAST_PORT} to 65535, not {port[:16]!r}\n"
            return PlainTextResponse(said, status_code=_BAD_REQUEST)
        assert request.client is not None
        caller = request.client.host.removeprefix(_MAPPED)
        async with self._turns:
            attempt = await asyncio.to_thread(
                try_port, caller, int(port), timeout_s=CALL_S, greeting_bytes=len(GREETING)
            )
        # What something else said there is nobody's business.
        is_known = attempt.greeting == GREETING
        told = CalledBack(
            seen_from=caller, reach=attempt.reach.value, detail=attempt.detail, is_known=is_known
        )
        return Response(msgspec.json.encode(told), media_type="application/json")
