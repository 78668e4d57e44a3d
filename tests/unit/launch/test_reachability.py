# SPDX-License-Identifier: Apache-2.0
"""`gangline doctor HOST:PORT`: whether a coordinator is reached, and calls back."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from serving import KEYS, ask, serving

from gangline.cli.main import run_command
from gangline.files.certificates import make_tls_files, own_hosts
from gangline.files.tls import server_tls
from gangline.launch.reachability import must_call_out
from gangline.protocol.reaching import Reach, interface_towards, listen_within, try_port
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(KEYS.observer)
    path.chmod(0o600)
    return str(path)


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the findings by what they are about."""
    code = run_command(["doctor", "--json", *arguments])
    document = json.loads(capsys.readouterr().out)
    return code, {one["what"]: one for one in document["findings"]}


def test_a_coordinator_with_tls_is_reached_and_calls_back(
    tmp_path: Path, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = make_tls_files(tmp_path, run="test", hosts=own_hosts())
    with serving(tls=server_tls(files)) as server:
        place = urlsplit(server.url).netloc
        flags = ("--token-file", token, "--tls-ca", files.authority)
        code, found = doctor(capsys, place, *flags)
    assert (code, [one["status"] for one in found.values()]) == (0, ["ok"] * 5)
    assert found["TLS"]["found"].startswith("certificate sha256:")
    assert found["seen as"]["found"] == "127.0.0.1"
    assert found["reached back"]["found"] == "open, at 127.0.0.1"


def test_without_tls_and_token_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        code, found = doctor(capsys, urlsplit(server.url).netloc)
    assert code == 0
    assert found["TLS"]["status"] == "limited"
    assert found["reached back"]["advice"].startswith("give the run's token")


def test_a_port_that_nobody_listens_on_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    code, found = doctor(capsys, f"127.0.0.1:{port}")
    (finding,) = found.values()
    assert (code, finding["status"]) == (1, "broken")
    assert finding["found"].startswith("refused")
    assert "is the coordinator running" in finding["advice"]


def test_what_is_no_coordinator_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(5)
        code, found = doctor_beside(capsys, other)
    assert code == 1
    assert found["coordinator"]["found"] == "something else answers there"


def doctor_beside(
    capsys: pytest.CaptureFixture[str], other: socket.socket
) -> tuple[int, dict[str, Any]]:
    """Asks while something hangs up on everybody."""

    def serve() -> None:
        for _ in range(3):
            sock, _ = other.accept()
            sock.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        return doctor(capsys, f"127.0.0.1:{other.getsockname()[1]}")
    finally:
        thread.join()


@pytest.mark.parametrize("port", ["", "x", "80", "70000", "9" * 400])
def test_no_other_port_is_called(port: str) -> None:
    with serving() as server:
        answer = ask(server, f"/api/reach?port={port}", KEYS.observer)
    assert answer.status_code == 400
    assert "port must be a number from 1024" in answer.text


def test_what_something_else_says_is_not_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, serving() as server:
        answer = ask(server, f"/api/reach?port={other.getsockname()[1]}", KEYS.observer)
    assert answer.json() == {
        "seen_from": "127.0.0.1",
        "reach": "open",
        "detail": "",
        "is_known": False,
    }


def test_names_are_looked_up_and_ranges_are_kept_to() -> None:
    assert try_port("no.such.name.invalid", 1, timeout_s=1).reach is Reach.UNKNOWN
    assert interface_towards("127.0.0.1", 1) == "127.0.0.1"
    with listen_within("127.0.0.1", (42000, 42099)) as listener:
        assert 42000 <= listener.getsockname()[1] <= 42099
        taken = listener.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listen_within("127.0.0.1", (taken, taken))


def test_two_questions_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", "--hosts", "x", "127.0.0.1:1"]) == 2
    assert run_command(["doctor", "127.0.0.1"]) == 2
    assert "names no port" in capsys.readouterr().err


def answer(**fields: Any) -> bytes:
    told = {"seen_from": "127.0.0.1", "reach": "open", "is_known": True, **fields}
    return json.dumps(told).encode()


def test_a_machine_that_joins_is_called_where_the_coordinator_gets_through() -> None:
    assert must_call_out("wss://127.0.0.1:7700", None, lambda path: answer()) is None


def test_a_machine_behind_a_translator_opens_all_connections_itself() -> None:
    told = answer(seen_from="203.0.113.9", reach="filtered", is_known=False)
    why = must_call_out("wss://127.0.0.1:7700", (20000, 20100), lambda path: told)
    assert why == (
        "the coordinator does not get through to 127.0.0.1, which is seen as 203.0.113.9 (filtered)"
    )


def test_nothing_changes_where_the_coordinator_cannot_say() -> None:
    def refuse(path: str) -> bytes:
        raise LaunchError("an older coordinator")

    assert must_call_out("wss://127.0.0.1:7700", None, refuse) is None
    assert must_call_out("wss://127.0.0.1:7700", None, lambda path: b"{}") is None
