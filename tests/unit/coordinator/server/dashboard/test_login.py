# SPDX-License-Identifier: Apache-2.0
"""Who gets into the dashboard: by a code that is good once, then by a cookie; and who does not."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import httpx
import pytest
from serving import KEYS, ask, serving

from gangline.coordinator.server.access import Role
from gangline.coordinator.server.dashboard.codes import (
    CODE_LASTS_S,
    MAX_CODES,
    SESSION_LASTS_S,
    LoginCodes,
    Sessions,
)
from gangline.files.certificates import make_tls_files
from gangline.files.tls import client_context, server_tls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gangline.coordinator.server import CoordinatorServer

SECRETS = ("/dashboard/stream", "/dashboard/assets/dashboard.js", "/dashboard/nothing")
"""What there is only for those who have logged in."""


class Browser:
    """Asks as a browser does that shows our own page, unless told otherwise."""

    def __init__(self, server: CoordinatorServer, client: httpx.Client) -> None:
        self.origin = server.url.replace("ws", "http", 1)
        self._client = client

    def get(self, path: str, **headers: str) -> httpx.Response:
        given = {"Sec-Fetch-Site": "same-origin", **headers}
        return self._client.get(self.origin + path, headers=given)

    def post(self, path: str, body: str, **headers: str) -> httpx.Response:
        given = {"Origin": self.origin, "Sec-Fetch-Site": "same-origin", **headers}
        return self._client.post(self.origin + path, content=body, headers=given)

    def log_in(self, code: str) -> httpx.Response:
        return self.post("/dashboard/login", f'{{"code": "{code}"}}')


@contextlib.contextmanager
def browsing() -> Iterator[tuple[CoordinatorServer, Browser]]:
    with serving() as server, httpx.Client(trust_env=False, timeout=20) as client:
        yield server, Browser(server, client)


def code_of(server: CoordinatorServer, token: str) -> str:
    answer = ask(server, "/api/dashboard/code", token, content=b"{}")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["code"])


def test_a_code_is_good_once_and_for_ten_minutes() -> None:
    now = [0.0]
    codes = LoginCodes(lambda: now[0])
    first, second = codes.make(Role.OPERATOR), codes.make(Role.OBSERVER)
    assert codes.use("wrong") is None
    assert codes.use(first) is Role.OPERATOR
    assert codes.use(first) is None
    now[0] = CODE_LASTS_S
    assert codes.use(second) is None


def test_only_so_many_codes_are_kept() -> None:
    codes = LoginCodes()
    made = [codes.make(Role.OBSERVER) for _ in range(MAX_CODES + 1)]
    assert codes.use(made[0]) is None
    assert all(codes.use(code) is Role.OBSERVER for code in made[1:])


def test_a_cookie_is_known_by_a_coordinator_that_was_started_again_and_by_no_other() -> None:
    now = [1000.0]
    value = Sessions("secret", lambda: now[0]).make(Role.OBSERVER)
    assert Sessions("secret", lambda: now[0]).role_of(value) is Role.OBSERVER
    assert Sessions("other", lambda: now[0]).role_of(value) is None
    forged = value.replace("observer", "operator")
    for wrong in (forged, value[:-1], "", "a.b.c.d", "é", "." * 300):
        assert Sessions("secret", lambda: now[0]).role_of(wrong) is None
    now[0] += SESSION_LASTS_S + 1
    assert Sessions("secret", lambda: now[0]).role_of(value) is None


def test_a_wrong_secret_sees_nothing() -> None:
    with browsing() as (server, browser):
        for token in ("", "wrong-token-that-is-long-enough"):
            assert ask(server, "/api/dashboard/code", token, content=b"{}").status_code == 401
            assert ask(server, "/api/events/stream", token).status_code == 401
        assert browser.log_in("wrong").status_code == 401
        for path in SECRETS:
            answer = browser.get(path, Cookie="gangline-1=wrong")
            assert answer.status_code == 401
        page = browser.get("/dashboard").text
        assert "Log in" in page
        assert "test" not in page  # the name of the run


def test_a_code_becomes_a_cookie_that_scripts_and_other_sites_cannot_have() -> None:
    with browsing() as (server, browser):
        code = code_of(server, KEYS.observer)
        answer = browser.log_in(code)
        assert answer.json() == {"role": "observer"}
        cookie = answer.headers["set-cookie"].lower()
        for part in ("httponly", "samesite=strict", "path=/dashboard", "max-age="):
            assert part in cookie
        assert "secure" not in cookie  # there is no TLS here
        assert browser.get("/dashboard/assets/dashboard.js").status_code == 200
        assert browser.log_in(code).status_code == 401
        assert "workers" in browser.get("/dashboard").text
        browser.post("/dashboard/logout", "")
        assert browser.get("/dashboard/assets/dashboard.js").status_code == 401


def test_a_copy_of_a_cookie_is_good_no_more_after_logging_out() -> None:
    with browsing() as (server, browser):
        given = browser.log_in(code_of(server, KEYS.operator)).headers["set-cookie"].split(";")[0]
        browser.post("/dashboard/logout", "")
        with httpx.Client(trust_env=False, timeout=20) as client:
            other = Browser(server, client)
            assert other.get(SECRETS[1], Cookie=given).status_code == 401
            order = other.post("/dashboard/order", '{"order": "pause"}', Cookie=given)
            assert order.status_code == 401


def test_cookies_that_were_given_back_are_remembered_while_they_would_be_good() -> None:
    now = [1000.0]
    sessions = Sessions("secret", lambda: now[0])
    first = sessions.make(Role.OPERATOR)
    sessions.end(first)
    sessions.end("a.b.c.d")
    assert sessions.role_of(first) is None
    now[0] += SESSION_LASTS_S + 1
    second, third = sessions.make(Role.OPERATOR), sessions.make(Role.OPERATOR)
    sessions.end(second)
    assert (sessions.role_of(second), sessions.role_of(third)) == (None, Role.OPERATOR)
    assert len(sessions._ended) == 1


def test_with_tls_the_cookie_never_travels_in_the_clear(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path, run="test", hosts=("127.0.0.1",))
    context = client_context(files.authority)
    with (
        serving(tls=server_tls(files)) as server,
        httpx.Client(trust_env=False, timeout=20, verify=context) as client,
    ):
        browser = Browser(server, client)
        answer = client.post(
            f"{browser.origin}/api/dashboard/code",
            headers={"Authorization": f"Bearer {KEYS.observer}"},
        )
        cookie = browser.log_in(answer.json()["code"]).headers["set-cookie"].lower()
        assert "; secure" in cookie
        assert browser.get("/dashboard/assets/dashboard.js").status_code == 200
        plain = browser.post("/dashboard/order", "{}", Origin=browser.origin.replace("s:", ":"))
        assert plain.status_code == 403


def test_every_answer_forbids_foreign_scripts_and_frames() -> None:
    with browsing() as (server, browser):
        browser.log_in(code_of(server, KEYS.observer))
        for path in (
            "/dashboard",
            "/dashboard/login.js",
            "/dashboard/assets/charts.js",
            "/dashboard/x",
        ):
            headers = browser.get(path).headers
            policy = headers["content-security-policy"]
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "foreign",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "", "Sec-Fetch-Site": ""},
    ],
)
def test_no_other_site_can_give_orders(foreign: dict[str, str]) -> None:
    with browsing() as (server, browser):
        browser.log_in(code_of(server, KEYS.operator))
        order = '{"order": "replan"}'
        assert browser.post("/dashboard/order", order, **foreign).status_code == 403
        # There is no view yet, so it is refused; but it is heard.
        assert browser.post("/dashboard/order", order).status_code in (200, 409)


def test_no_other_site_can_read() -> None:
    with browsing() as (server, browser):
        browser.log_in(code_of(server, KEYS.observer))
        for path in SECRETS:
            answer = browser.get(path, **{"Sec-Fetch-Site": "cross-site"})
            assert answer.status_code == 403
        assert browser.get("/dashboard", **{"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_an_observer_gives_no_orders() -> None:
    with browsing() as (server, browser):
        for token in (KEYS.observer, KEYS.worker):
            browser.log_in(code_of(server, token))
            answer = browser.post("/dashboard/order", '{"order": "replan"}')
            assert answer.status_code == 403
            assert "operator" in answer.text


def test_a_cookie_is_no_token() -> None:
    with browsing() as (server, browser):
        browser.log_in(code_of(server, KEYS.operator))
        assert browser.get("/api/status").status_code == 401


def test_codes_cannot_be_tried_for_long() -> None:
    with browsing() as (_, browser):
        answers = {browser.log_in("wrong").status_code for _ in range(20)}
        assert 429 in answers


def test_no_code_and_no_cookie_is_in_a_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    with browsing() as (server, browser):
        code = code_of(server, KEYS.operator)
        value = browser.log_in(code).headers["set-cookie"].split("=", 1)[1].split(";")[0]
        browser.post("/dashboard/order", '{"order": "nonsense"}')
    for secret in (code, value, KEYS.operator):
        assert secret not in caplog.text


def test_an_order_that_there_is_not_is_refused_by_name() -> None:
    with browsing() as (server, browser):
        browser.log_in(code_of(server, KEYS.operator))
        answer = browser.post("/dashboard/order", '{"order": "sing"}')
        assert answer.status_code == 409
        assert "'sing'" in answer.text
        assert browser.post("/dashboard/order", "{").status_code == 400
