# SPDX-License-Identifier: Apache-2.0
"""Who may do what with a coordinator, and where the tokens are kept."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import KEYS, ask, hello, open_line, serving
from websockets.exceptions import InvalidStatus

from gangline.cli.main import run_command
from gangline.coordinator.server.access import Keys, Role
from gangline.files.announcement import Announcement
from gangline.files.tokens import find_token, read_token, write_token
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gangline.coordinator.server import CoordinatorServer

LEAVE = b'{"worker": 0}'


@pytest.fixture(scope="module")
def server() -> Iterator[CoordinatorServer]:
    with serving() as made:
        yield made


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/api/status", Role.OBSERVER),
        ("GET", "/openapi.json", Role.OBSERVER),
        ("GET", "/metrics", Role.OBSERVER),
        ("POST", "/api/leave", Role.OPERATOR),
        ("POST", "/api/certificate", Role.WORKER),
        ("GET", "/api/invitations", Role.OPERATOR),
        ("POST", "/api/invitations/withdraw", Role.OPERATOR),
        ("GET", "/no/such/page", Role.OBSERVER),
        ("DELETE", "/no/such/page", Role.OPERATOR),
    ],
)
def test_every_route_wants_its_role(
    server: CoordinatorServer, method: str, path: str, needed: Role
) -> None:
    tokens = {
        Role.OBSERVER: KEYS.observer,
        Role.WORKER: KEYS.worker,
        Role.OPERATOR: KEYS.operator,
    }
    for token in ("", "guess", KEYS.worker[:-1], KEYS.worker + "x", "e" * 4000):
        answer = ask(server, path, token, method=method)
        assert answer.status_code == 401, token
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "missing or wrong" in answer.text
    for role, token in tokens.items():
        answer = ask(server, path, token, method=method)
        if role < needed:
            assert answer.status_code == 403
            assert f"needs the token of {needed.text}" in answer.text
            assert f"this is that of {role.text}" in answer.text
        else:
            assert answer.status_code not in (401, 403)


def test_a_worker_line_wants_a_worker(server: CoordinatorServer) -> None:
    for token, code, text in (
        ("guess", 401, "missing or wrong"),
        (KEYS.observer, 403, "needs the token of a worker, this is that of an observer"),
    ):
        with pytest.raises(InvalidStatus) as refused:
            open_line(server, token)
        assert refused.value.response.status_code == code
        assert text in (refused.value.response.body or b"").decode()


def test_two_tokens_are_none(server: CoordinatorServer) -> None:
    headers = [("Authorization", f"Bearer {KEYS.worker}"), ("Authorization", "Bearer guess")]
    url = server.url.replace("ws", "http", 1) + "/api/status"
    assert httpx.get(url, headers=headers, trust_env=False).status_code == 401


def test_a_worker_is_let_in(server: CoordinatorServer) -> None:
    with open_line(server) as line:
        line.send(hello())
        assert '"worker":0' in ask(server, "/api/status", KEYS.observer).text.replace(" ", "")


def test_a_request_to_leave_that_says_nothing_is_refused(server: CoordinatorServer) -> None:
    answer = ask(server, "/api/leave", KEYS.operator, content=b"[]")
    assert (answer.status_code, answer.text[:8]) == (400, "Expected")
    answer = ask(server, "/api/leave", KEYS.operator, content=LEAVE)
    assert answer.status_code == 409
    assert "does not take part" in answer.text


@given(st.binary(max_size=80))
def test_no_other_token_has_a_role(token: bytes) -> None:
    known = {KEYS.worker.encode(), KEYS.observer.encode(), KEYS.operator.encode()}
    assert (KEYS.role_of(token) is None) == (token not in known)


# --- files -------------------------------------------------------------------------------------------


def test_tokens_are_made_once_and_differ(tmp_path: Path) -> None:
    keys = Keys.in_folder(tmp_path, worker_file=tmp_path / "token")
    assert len({keys.worker, keys.observer, keys.operator}) == 3
    assert Keys.in_folder(tmp_path, worker_file=tmp_path / "token") == keys
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = write_token(path)
    assert read_token(path) == token
    path.chmod(0o640)
    with pytest.raises(UsageError, match=r"can be read by others \(mode 640\).*chmod 600"):
        read_token(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is no token"),
        (b"short", "is no token"),
        (b"\xff" * 32, "letters, digits"),
        (b"x" * 5000, "is no token"),
        (b"a token with a\x00 in it", "is no token"),
    ],
)
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UsageError, match=text):
        find_token(path)


def test_a_token_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot read"):
        find_token(tmp_path / "token")
    assert not (tmp_path / "elsewhere").exists()


# --- the command line --------------------------------------------------------------------------------


def test_leave_says_which_token_it_needs(
    server: CoordinatorServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Announcement(run="test", url=server.url, pid=1).write(tmp_path)
    for name, token in (("observer-token", KEYS.observer), ("operator-token", "x" * 20)):
        (tmp_path / name).write_text(token)
        (tmp_path / name).chmod(0o600)
    as_observer = ["--token-file", str(tmp_path / "observer-token")]
    assert run_command(["leave", str(tmp_path), "--worker", "0", *as_observer]) == 1
    assert "needs the token of an operator, this is that of an observer" in _flat(capsys)
    assert run_command(["leave", str(tmp_path), "--worker", "0"]) == 1
    assert "does not know the token" in _flat(capsys)
    assert run_command(["status", str(tmp_path)]) == 0


def _flat(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("order", "body"),
    [
        ("exclude", '{"worker": 99999999999999999999, "is_out": true}'),
        ("busy", '{"worker": 0, "pid": 99999999999999999999}'),
        (
            "replan",
            '{"structure": {"topology": "ring", "leader": 99999999999999999999, '
            '"members": [0, 99999999999999999999]}}',
        ),
    ],
)
def test_an_order_that_cannot_be_recorded_is_a_bad_request(order: str, body: str) -> None:
    with serving() as server:
        answer = ask(server, f"/api/{order}", KEYS.operator, content=body.encode())
    assert (answer.status_code, answer.text) == (
        400,
        "a number in this order is larger than any job has\n",
    )
