# SPDX-License-Identifier: Apache-2.0
"""The dashboard over HTTP: its login, its page, its stream and its buttons."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from gangline import frontend
from gangline.coordinator.server.access import ROLE, Role
from gangline.coordinator.server.dashboard.codes import (
    CODE_LASTS_S,
    SESSION_LASTS_S,
    LoginCodes,
    Sessions,
)
from gangline.coordinator.server.dashboard.door import (
    HEADERS,
    LOGIN,
    LOGOUT,
    ROOT,
    Door,
    cookie,
    cookie_name,
    refuse,
)
from gangline.coordinator.server.dashboard.feed import Feed
from gangline.coordinator.server.dashboard.killing import Killer
from gangline.coordinator.server.dashboard.orders import (
    KILL,
    MeaninglessError,
    check_order,
    input_of,
)
from gangline.coordinator.server.dashboard.streaming import ReadStream
from gangline.protocol.live import CodeAnswer, OrderRequest
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from starlette.requests import Request

    from gangline.coordinator.inputs import Input
    from gangline.coordinator.server.driver import Driver

ASSETS = {
    **dict.fromkeys(("live.js", "laststeps.js", "workers.js", "dashboard.js"), "text/javascript"),
    "dashboard.css": "text/css",
    **dict.fromkeys(frontend.CHART_SCRIPTS, "text/javascript"),
    **dict.fromkeys(frontend.CHART_STYLES, "text/css"),
}
"""The files of the page, for who has logged in."""
_BAD_REQUEST, _UNKNOWN, _MISSING, _CONFLICT, _BUSY = 400, 401, 404, 409, 503
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Dashboard:
    """Shows a job to browsers, and to programs that read lines of JSON."""

    def __init__(
        self,
        driver: Driver,
        *,
        secret: str,
        handle: Callable[[Input], None],
        may_kill: bool = False,
    ) -> None:
        """`secret` signs cookies; `handle` has an order carried out, or raises UsageError.

        With `may_kill`, operators may kill workers of this machine.
        """
        self._driver = driver
        self._may_kill = may_kill
        self._killer = Killer()
        self._handle = handle
        self._codes = LoginCodes()
        self._sessions = Sessions(secret)
        self.door = Door(self._sessions)
        """Who may come in."""
        self.feed = Feed(driver, may_kill=may_kill)

    @property
    def routes(self) -> list[BaseRoute]:
        """What can be asked for."""
        return [
            Route("/api/dashboard/code", self.code, methods=["POST"]),
            Route("/api/events/stream", self.stream),
            Route(ROOT, self.page),
            Route(f"{ROOT}/login.js", self.login_asset),
            Route(f"{ROOT}/login.css", self.login_asset),
            Route(LOGIN, self.login, methods=["POST"]),
            Route(LOGOUT, self.logout, methods=["POST"]),
            Route(f"{ROOT}/assets/{{name:path}}", self.asset),
            Route(f"{ROOT}/stream", self.event_source),
            Route(f"{ROOT}/order", self.order, methods=["POST"]),
            Route(f"{ROOT}/{{rest:path}}", self.nothing, methods=["GET", "POST"]),
        ]

    # --- getting in ------------------------------------------------------------------------------

    async def code(self, request: Request) -> Response:
        """Somebody with a token wants a browser let in."""
        role = Role.OPERATOR if request.scope[ROLE] is Role.OPERATOR else Role.OBSERVER
        answer = CodeAnswer(
            code=self._codes.make(role), role=role.name.lower(), lasts_s=CODE_LASTS_S
        )
        return _json(answer)

    async def login(self, request: Request) -> Response:
        """A browser gives its code, and gets a cookie."""
        try:
            given = msgspec.json.decode(await request.body(), type=dict[str, str]).get("code", "")
        except _UNREADABLE:
            return refuse(_BAD_REQUEST, "this is no code")
        role = self._codes.use(given)
        if role is None:
            return refuse(
                _UNKNOWN,
                "this code is wrong, was used already, or is older than 10 minutes: "
                "`gangline dashboard RUN_DIR` prints another",
            )
        response = _json({"role": role.name.lower()})
        self._set_cookie(response, request, self._sessions.make(role), SESSION_LASTS_S)
        return response

    async def logout(self, request: Request) -> Response:
        """A browser gives its cookie back, which is good no more, nor is a copy of it."""
        self._sessions.end(cookie(request.scope))
        response = _json({})
        self._set_cookie(response, request, "", 0)
        return response

    def _set_cookie(self, response: Response, request: Request, value: str, lasts_s: float) -> None:
        response.set_cookie(
            cookie_name(request.scope),
            value,
            max_age=int(lasts_s),
            path=ROOT,
            secure=request.scope["scheme"] == "https",
            httponly=True,
            samesite="strict",
        )

    # --- the page --------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """The dashboard; for strangers, the page that asks for a code."""
        is_known = request.scope[ROLE] is not None
        return _file("dashboard.html" if is_known else "login.html", "text/html", is_known=is_known)

    async def login_asset(self, request: Request) -> Response:
        """What the page needs that asks for a code."""
        name = request.url.path.rpartition("/")[2]
        kind = "text/javascript" if name.endswith(".js") else "text/css"
        return _file(name, kind, is_known=request.scope[ROLE] is not None)

    async def asset(self, request: Request) -> Response:
        """What the page itself needs."""
        name = request.path_params["name"]
        if name not in ASSETS:
            return refuse(_MISSING, f"there is no {ROOT}/assets/{name}")
        return _file(name, ASSETS[name])

    async def nothing(self, request: Request) -> Response:
        """There is nothing of that name."""
        return refuse(_MISSING, f"there is no {request.url.path}")

    # --- what happens ----------------------------------------------------------------------------

    async def stream(self, request: Request) -> Response:
        """Everything that happens, for programs: lines of JSON. `?steps=no` leaves out single steps."""
        wants_all = request.query_params.get("steps", "yes") != "no"
        return await self._streamed(request, "application/x-ndjson", _lines, wants_all=wants_all)

    async def event_source(self, request: Request) -> Response:
        """What people look at, for browsers: Server-Sent Events."""
        return await self._streamed(request, "text/event-stream", _sent_events, wants_all=False)

    async def _streamed(
        self,
        request: Request,
        kind: str,
        write: Callable[[list[bytes]], bytes],
        *,
        wants_all: bool,
    ) -> Response:
        followed = self.feed.follow(role=request.scope[ROLE].name.lower(), wants_all=wants_all)
        try:
            first = await anext(followed)
        except UsageError as error:
            return refuse(_BUSY, str(error))

        async def written() -> AsyncGenerator[bytes]:
            try:
                yield write(first)
                async for lines in followed:
                    yield write(lines)
            finally:
                await followed.aclose()

        return ReadStream(written(), media_type=kind, headers=HEADERS)

    # --- buttons ---------------------------------------------------------------------------------

    async def order(self, request: Request) -> Response:
        """An operator has pressed a button."""
        try:
            asked = msgspec.json.decode(await request.body(), type=OrderRequest)
            check_order(asked)
        except (*_UNREADABLE, MeaninglessError) as error:
            return refuse(_BAD_REQUEST, str(error))
        try:
            self._carry_out(asked)
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", status_code=_CONFLICT, headers=HEADERS)
        return _json({})

    def _carry_out(self, asked: OrderRequest) -> None:
        if asked.order != KILL:
            self._handle(input_of(asked))
            return
        if not self._may_kill:
            raise UsageError("workers can be killed from here where a job runs with --allow-chaos")
        self._killer.kill(asked.worker, self._driver.coordinator.status(), self._driver.run_dir)
        reason = f"worker {asked.worker} is killed: an operator wants to see the job survive it"
        numbers = {"worker": float(asked.worker)}
        self._driver.write(Decision(t=time.time(), what="kill", reason=reason, numbers=numbers))


def _lines(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _sent_events(lines: list[bytes]) -> bytes:
    return b"".join(b"data: " + line + b"\n\n" for line in lines)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers=HEADERS)


def _file(name: str, kind: str, *, is_known: bool = True) -> Response:
    # A stranger's connection is not kept: there is room for few of them.
    headers = HEADERS if is_known else {**HEADERS, "Connection": "close"}
    try:
        text = frontend.asset(name)
    except frontend.FrontendMissingError as error:
        return refuse(_MISSING, str(error))
    return Response(text, media_type=kind, headers=headers)
