# SPDX-License-Identifier: Apache-2.0
"""An answer that goes on for as long as somebody reads it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from starlette.types import Message, Receive, Scope, Send

UNREAD_S = 16.0
"""Who reads nothing for so long is dropped."""


class _UnreadError(Exception):
    """Nobody reads what is sent."""


class ReadStream(StreamingResponse):
    """Ends where nobody reads it: it would wait for its reader for good, with all that it holds.

    The server then closes the connection, and the entrance drops what is still unsent.
    """

    def __init__(
        self, content: AsyncGenerator[bytes], *, media_type: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(UNREAD_S):
                    await send(message)
            except TimeoutError as error:
                raise _UnreadError from error

        try:
            await super().__call__(scope, receive, send_in_time)
        except _UnreadError:
            return
        finally:
            await self._content.aclose()
