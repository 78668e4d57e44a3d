# SPDX-License-Identifier: Apache-2.0
"""Lets machines in that were invited, keeps the invitations, and offers the job's code."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from gangline.coordinator.server.access import bearer
from gangline.files.code import read_contents, read_manifest
from gangline.protocol.joining import (
    EnterAnswer,
    InvitationAnswer,
    InvitationRequest,
    InvitationStatus,
    WithdrawRequest,
)
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from gangline.files.invitations import Invitation, Invitations

_BAD_REQUEST, _CONFLICT, _NO_ROOM = 400, 409, 507
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Reception:
    """Answers who has an invitation, and who makes them."""

    def __init__(
        self,
        invitations: Invitations,
        *,
        run: str,
        token: str,
        authority: str = "",
        run_dir: Path | None = None,
    ) -> None:
        self._invitations = invitations
        self._run_dir = run_dir
        self._answer = EnterAnswer(run=run, token=token, authority=authority)

    @property
    def routes(self) -> list[BaseRoute]:
        """What can be asked for."""
        return [
            Route("/api/enter", self.enter, methods=["POST"]),
            Route("/api/invitations", self.invitations, methods=["GET", "POST"]),
            Route("/api/invitations/withdraw", self.withdraw, methods=["POST"]),
            Route("/api/code", self.code),
            Route("/api/code/files", self.code_files),
        ]

    async def enter(self, request: Request) -> Response:
        """A machine gives its secret, and gets what its workers need."""
        try:
            self._invitations.use(bearer(request.scope))
        except UsageError as error:  # the last use went to somebody else at this very moment
            return PlainTextResponse(f"{error}\n", status_code=_CONFLICT)
        except OSError as error:
            return _cannot_write(error)
        return _answered(self._answer)

    async def invitations(self, request: Request) -> Response:
        """All invitations; somebody may have one made."""
        if request.method != "POST":
            now_s = time.time()
            return _answered([_status(one, now_s) for one in self._invitations.listed()])
        try:
            asked = msgspec.json.decode(await request.body(), type=InvitationRequest)
            secret, made = self._invitations.make(lasts_s=asked.lasts_s, uses=asked.uses)
        except (*_UNREADABLE, UsageError) as error:
            return PlainTextResponse(f"{error}\n", status_code=_BAD_REQUEST)
        except OSError as error:
            return _cannot_write(error)
        return _answered(
            InvitationAnswer(name=made.name, secret=secret, ends_s=made.ends_s, uses=made.uses)
        )

    async def withdraw(self, request: Request) -> Response:
        """Somebody wants an invitation to let nobody in any more."""
        try:
            asked = msgspec.json.decode(await request.body(), type=WithdrawRequest)
        except _UNREADABLE as error:
            return PlainTextResponse(f"{error}\n", status_code=_BAD_REQUEST)
        try:
            withdrawn = self._invitations.withdraw(asked.name)
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", status_code=_CONFLICT)
        except OSError as error:
            return _cannot_write(error)
        return _answered(_status(withdrawn, time.time()))

    async def code(self, request: Request) -> Response:
        """The list of the job's code; null where there is none to be had."""
        try:
            return _answered(None if self._run_dir is None else read_manifest(self._run_dir))
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", status_code=_CONFLICT)

    async def code_files(self, request: Request) -> Response:
        """What is in its files, one after the other. Read by a thread, piece by piece."""
        if self._run_dir is None or read_manifest(self._run_dir) is None:
            return PlainTextResponse("this job offers no code\n", status_code=_CONFLICT)
        return StreamingResponse(
            read_contents(self._run_dir), media_type="application/octet-stream"
        )


def _status(one: Invitation, now_s: float) -> InvitationStatus:
    return InvitationStatus(
        name=one.name,
        state=one.state(now_s),
        uses=one.uses,
        used=one.used,
        made_s=one.made_s,
        ends_s=one.ends_s,
    )


def _cannot_write(error: OSError) -> Response:
    """An invitation that is not on the disk would be forgotten, or used too often."""
    return PlainTextResponse(
        f"the coordinator cannot write to its run folder ({error.strerror}): nothing was changed\n",
        status_code=_NO_ROOM,
    )


def _answered(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
