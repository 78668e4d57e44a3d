# SPDX-License-Identifier: Apache-2.0
"""Who may see the dashboard, and use its buttons.

Without a cookie of ours there is only the page that asks for a code, which is the same for every job.
What changes something must come from our own page: browsers say where a request was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response

from gangline.coordinator.server.access import Role
from gangline.coordinator.server.limits import Allowance

if TYPE_CHECKING:
    from starlette.types import Scope

    from gangline.coordinator.server.dashboard.codes import Sessions

ROOT = "/dashboard"
LOGIN, LOGOUT = f"{ROOT}/login", f"{ROOT}/logout"
PUBLIC = frozenset({ROOT, LOGIN, LOGOUT, f"{ROOT}/login.js", f"{ROOT}/login.css"})
"""What is there for somebody without a cookie; nothing of the job is in it."""
_UNKNOWN, _FORBIDDEN, _TOO_MANY = 401, 403, 429
_READING = ("GET", "HEAD")
_LOGINS_PER_S, _LOGIN_BURST = 0.2, 10.0
"""Tries per address, of codes that have 128 random bits."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Sent with everything: no script but our files, in nobody's frame, kept by no cache."""


class Door:
    """Tells who is at the door of the dashboard, and sends those away who may not come in."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._logins = Allowance(_LOGINS_PER_S, burst=_LOGIN_BURST)

    def concerns(self, scope: Scope) -> bool:
        """Whether a request is for the dashboard."""
        path = str(scope["path"])
        return scope["type"] == "http" and (path == ROOT or path.startswith(f"{ROOT}/"))

    def admit(self, scope: Scope) -> Role | Response | None:
        """The role of who asks; None: a stranger, who may ask for this; or why it may not be."""
        path, is_reading = str(scope["path"]), scope["method"] in _READING
        if not _is_from_here(scope, is_reading=is_reading):
            return refuse(_FORBIDDEN, "this was asked for by the page of another site")
        if path == LOGIN and not self._logins.take(scope["client"][0]):
            return refuse(_TOO_MANY, "too many tries: wait a few seconds, and log in again")
        role = self._sessions.role_of(cookie(scope))
        if path in PUBLIC:
            return role
        if role is None:
            return refuse(_UNKNOWN, "log in first: `gangline dashboard RUN_DIR` prints a link")
        if not is_reading and role < Role.OPERATOR:
            return refuse(
                _FORBIDDEN, f"this needs the role of an operator, and this is {role.text}"
            )
        return role


def cookie_name(scope: Scope) -> str:
    """One per port: browsers give cookies to all ports of a machine."""
    return f"gangline-{scope['server'][1]}"


def cookie(scope: Scope) -> str:
    """The value of our cookie in a request; empty where there is none, or several."""
    name, found = cookie_name(scope), []
    for header in _headers(scope, b"cookie"):
        for part in header.split(";"):
            key, _, value = part.strip().partition("=")
            found += [value] if key == name else []
    return found[0] if len(found) == 1 else ""


def refuse(status: int, sentence: str) -> Response:
    """An answer that says why it is none."""
    headers = {**HEADERS, "Connection": "close"}
    if status == _TOO_MANY:
        headers["Retry-After"] = "5"
    return PlainTextResponse(f"{sentence}\n", status_code=status, headers=headers)


def _is_from_here(scope: Scope, *, is_reading: bool) -> bool:
    """Whether a request was made by our own page; reading, also by who typed the address."""
    sites, origins = _headers(scope, b"sec-fetch-site"), _headers(scope, b"origin")
    own = [f"{scope['scheme']}://{host}" for host in _headers(scope, b"host")]
    if origins and origins != own:
        return False
    if not is_reading:
        return bool(origins or sites) and sites in ([], ["same-origin"])
    # A link from elsewhere may lead to the page that asks for a code, and to nothing else.
    is_linked = str(scope["path"]) == ROOT
    return is_linked or sites in ([], ["same-origin"], ["none"])


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]
