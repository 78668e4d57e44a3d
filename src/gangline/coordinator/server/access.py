# SPDX-License-Identifier: Apache-2.0
"""Who may do what: three roles, each with a token of its own.

An observer reads. A worker takes part in the training, and reads. An operator changes the job from
outside, and may do everything. Without a token nothing is answered but that one is missing.
"""

from __future__ import annotations

import contextlib
import enum
import hmac
import logging
from typing import TYPE_CHECKING

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from gangline.coordinator.server.limits import Allowance, Limits, limited_body
from gangline.files.invitations import WrongSecretError
from gangline.files.tokens import OBSERVER_TOKEN, OPERATOR_TOKEN, find_token, make_token
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gangline.coordinator.server.dashboard.door import Door
    from gangline.coordinator.server.entrance import Entrance
    from gangline.files.invitations import Invitations

_READING = ("GET", "HEAD", "OPTIONS")
_log = logging.getLogger("gangline.coordinator")
_UNKNOWN, _FORBIDDEN, _SPENT, _TOO_LARGE, _TOO_MANY = 401, 403, 410, 413, 429
ENTRANCE = "/api/enter"
"""Where the secret of an invitation is given, in place of a token."""
ROLE = "gangline.role"
"""Under which a request's scope says what who asks is entitled to."""


class Role(enum.IntEnum):
    """What a token entitles to; each role may do what those before it may."""

    OBSERVER = 1
    WORKER = 2
    OPERATOR = 3

    @property
    def text(self) -> str:
        """The role, for people."""
        return f"{'a' if self is Role.WORKER else 'an'} {self.name.lower()}"


NEEDED: dict[str, Role] = {
    **dict.fromkeys(("/ws/worker", "/api/busy", "/api/certificate", "/api/events"), Role.WORKER),
    **dict.fromkeys(("/api/code", "/api/code/files"), Role.WORKER),
    "/api/invitations": Role.OPERATOR,
    "/api/dashboard/code": Role.OBSERVER,
}
"""Paths whose role is not that of their method: to read, observer; anything else, operator."""


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one run."""

    worker: str
    """Workers prove it to the coordinator, and to each other."""
    observer: str
    operator: str

    @classmethod
    def of_worker(cls, token: str) -> Keys:
        """For a job whose workers have a token; nobody else gets in."""
        return cls(worker=token, observer=make_token(), operator=make_token())

    @classmethod
    def in_folder(cls, run_dir: Path, *, worker_file: Path) -> Keys:
        """The tokens of a run folder, in files that are made where they are missing."""
        return cls(
            worker=find_token(worker_file),
            observer=find_token(run_dir / OBSERVER_TOKEN),
            operator=find_token(run_dir / OPERATOR_TOKEN),
        )

    def role_of(self, token: bytes) -> Role | None:
        """What this token entitles to. Takes as long for a wrong one as for a right one."""
        pairs = (
            (Role.OBSERVER, self.observer),
            (Role.WORKER, self.worker),
            (Role.OPERATOR, self.operator),
        )
        found = [role for role, own in pairs if hmac.compare_digest(token, own.encode())]
        return max(found, default=None)


def needed_role(scope: Scope) -> Role:
    """What a request must be entitled to."""
    path = str(scope["path"])
    if path in NEEDED:
        return NEEDED[path]
    if scope["type"] == "websocket":
        return Role.WORKER
    return Role.OBSERVER if scope["method"] in _READING else Role.OPERATOR


class AccessGate:
    """Lets nobody past who does not bring the token for what it wants, and nobody too often."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys,
        entrance: Entrance,
        limits: Limits,
        invitations: Invitations,
        door: Door | None = None,
    ) -> None:
        """`door` knows who may see the dashboard; without one there is none."""
        self._app = app
        self._door = door
        self._keys = keys
        self._invitations = invitations
        self._entrance = entrance
        self._limits = limits
        self._allowance = Allowance(limits.requests_per_s, burst=limits.request_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        found = self._find_role(scope)
        limited = receive if scope["type"] == "websocket" else limited_body(receive, self._limits)
        if not isinstance(found, Role | None):
            if self._door is not None and self._door.concerns(scope):
                await _read_out(limited)
            await found(scope, receive, send)
            return
        scope[ROLE] = found
        is_stranger = found is None and scope["path"] != ENTRANCE
        proven = contextlib.nullcontext() if is_stranger else self._entrance.proven(scope["client"])
        with proven:
            try:
                await self._app(scope, limited, send)
            except Exception:
                _log.exception("%s could not be answered", scope["path"])
                raise

    def _find_role(self, scope: Scope) -> Role | Response | None:
        """What who asks is entitled to; None: a guest, or a stranger at the dashboard's login."""
        if scope["path"] == ENTRANCE and scope["type"] == "http":
            return self._refusal_of_guest(scope)
        if self._door is not None and self._door.concerns(scope):
            return self._find_viewer(self._door, scope)
        role, needed = self._keys.role_of(bearer(scope)), needed_role(scope)
        if role is None:
            return _refuse(_UNKNOWN, "the run's token is missing or wrong")
        if role < needed:
            return _refuse(
                _FORBIDDEN,
                f"{scope['path']} needs the token of {needed.text}, this is that of {role.text}",
            )
        return self._refusal_of_much(scope, role) or role

    def _find_viewer(self, door: Door, scope: Scope) -> Role | Response | None:
        """As `_find_role`, for a browser, which has no token."""
        found = door.admit(scope)
        if found is not None and not isinstance(found, Role):
            return found
        return self._refusal_of_much(scope, "nobody" if found is None else found) or found

    def _refusal_of_much(self, scope: Scope, caller: Hashable) -> Response | None:
        if not self._allowance.take((scope["client"][0], caller)):
            return _refuse(_TOO_MANY, "too many requests: wait a second and ask again")
        return self._refusal_of_size(scope)

    def _refusal_of_guest(self, scope: Scope) -> Response | None:
        """Whoever has no invitation stays a stranger, and its refusals are counted as such."""
        try:
            invitation = self._invitations.check(bearer(scope))
        except WrongSecretError as error:
            return _refuse(_UNKNOWN, str(error))
        except UsageError as error:
            return _refuse(_SPENT, str(error))
        return self._refusal_of_much(scope, invitation.name)

    def _refusal_of_size(self, scope: Scope) -> Response | None:
        if _announced_bytes(scope) > self._limits.body_bytes:
            return _refuse(_TOO_LARGE, f"a request has at most {self._limits.body_bytes} bytes")
        return None


def bearer(scope: Scope) -> bytes:
    """The token or secret that a request brings; nothing where it brings none, or several."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return b""
    scheme, _, token = values[0].partition(b" ")
    return bytes(token.strip()) if scheme.lower() == b"bearer" else b""


async def _read_out(receive: Receive) -> None:
    """Reads a request to its end: a browser that is still sending would not hear the answer."""
    with contextlib.suppress(HTTPException):
        while (await receive()).get("more_body", False):
            pass


def _announced_bytes(scope: Scope) -> int:
    values = [value for name, value in scope["headers"] if name == b"content-length"]
    return max((int(value) for value in values if value.isdigit()), default=0)


def _refuse(status: int, sentence: str) -> PlainTextResponse:
    headers = {"Connection": "close"}
    if status == _UNKNOWN:
        headers["WWW-Authenticate"] = "Bearer"
    if status == _TOO_MANY:
        headers["Retry-After"] = "1"
    return PlainTextResponse(f"{sentence}\n", status_code=status, headers=headers)
