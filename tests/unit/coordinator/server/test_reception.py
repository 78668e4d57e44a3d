# SPDX-License-Identifier: Apache-2.0
"""Machines come in by a link: the right ones, to the right coordinator."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest
from serving import KEYS, ask, serving, until

from gangline.cli.main import run_command
from gangline.coordinator.server import Keys
from gangline.coordinator.server.limits import Limits
from gangline.files.announcement import Announcement
from gangline.files.certificates import make_tls_files
from gangline.files.tls import own_fingerprint, server_context, server_tls
from gangline.launch.joining.entering import enter, settle, undone_on_error
from gangline.launch.joining.inviting import (
    links_to,
    list_invitations,
    make_invitation,
    withdraw_invitation,
)
from gangline.spec.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gangline.spec.machines.link import JoinLink


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """A run over TLS whose coordinator serves."""
    folder = tmp_path / "run"
    folder.mkdir()
    files = make_tls_files(folder, run="test", hosts=["127.0.0.1"])
    keys = Keys.in_folder(folder, worker_file=folder / "token")
    with serving(keys=keys, tls=server_tls(files), run_dir=folder) as server:
        Announcement(run="test", url=server.url, pid=os.getpid()).write(folder)
        yield folder


def invited(run_dir: Path, **options: Any) -> JoinLink:
    settings = {"lasts_s": 60.0, "uses": 3, **options}
    return make_invitation(run_dir, **settings)[1][0]


def test_a_secret_is_changed_for_the_workers_token(run_dir: Path, tmp_path: Path) -> None:
    link = invited(run_dir)
    answer = enter(link, link.secret)
    assert answer.token == (run_dir / "token").read_text().strip()
    assert answer.authority == (run_dir / "tls" / "authority.pem").read_text()
    contact = settle(link, answer, tmp_path)
    assert contact.token_file.stat().st_mode & 0o077 == 0
    assert b'"run":"test"' in contact.ask("/api/status")
    assert [(one.used, one.state) for one in list_invitations(run_dir)] == [(1, "open")]


def test_every_kind_of_useless_secret_has_its_own_words(run_dir: Path) -> None:
    link, once = invited(run_dir), invited(run_dir, uses=1)
    late = invited(run_dir, lasts_s=0.001)
    enter(once, once.secret)
    withdraw_invitation(run_dir, list_invitations(run_dir)[0].name)
    for given, words in (
        ("guess", "no invitation of this run has that secret"),
        (once.secret, "let in 1 machine, and is used up"),
        (late.secret, "expired at"),
        (link.secret, "was withdrawn"),
    ):
        with pytest.raises(LaunchError, match=f"{words}.*gangline token make"):
            enter(link, given)


def test_a_link_of_another_run_is_told_so(run_dir: Path) -> None:
    link = msgspec.structs.replace(invited(run_dir), run="other")
    with pytest.raises(UsageError, match="of run 'other', and run 'test' answers"):
        enter(link, link.secret)


def test_a_man_in_the_middle_is_named_and_told_nothing(run_dir: Path, tmp_path: Path) -> None:
    """It has a certificate for the same address, from an authority of the same name."""
    other = tmp_path / "other"
    other.mkdir()
    files = make_tls_files(other, run="test", hosts=["127.0.0.1"])
    heard: list[bytes] = []
    link = invited(run_dir)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def stand_between() -> None:
            sock, _ = listening.accept()
            with server_context(files).wrap_socket(sock, server_side=True) as line:
                line.settimeout(5)
                try:
                    heard.append(line.recv(4096))
                except (OSError, ssl.SSLError):
                    heard.append(b"")

        thread = threading.Thread(target=stand_between)
        thread.start()
        link = msgspec.structs.replace(link, port=listening.getsockname()[1])
        with pytest.raises(LaunchError, match="is not the coordinator of this link") as refused:
            enter(link, link.secret)
        thread.join()
    assert own_fingerprint(files) in str(refused.value)
    assert link.fingerprint in str(refused.value)
    assert heard == [b""]
    assert list_invitations(run_dir)[0].used == 0


def test_nobody_there_is_an_error_that_says_what_to_look_at(run_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    link = msgspec.structs.replace(invited(run_dir), port=port)
    with pytest.raises(LaunchError, match="a firewall keeps that port closed"):
        enter(link, link.secret)


def test_only_an_operator_deals_with_invitations() -> None:
    with serving() as server:
        for token in (KEYS.observer, KEYS.worker):
            assert ask(server, "/api/invitations", token).status_code == 403
        asked = b'{"lasts_s": 5, "uses": 1}'
        made = ask(server, "/api/invitations", KEYS.operator, content=asked).json()
        for wrong in (b"{", b'{"lasts_s": -1, "uses": 1}', b'{"lasts_s": 5, "uses": 1e9}'):
            assert ask(server, "/api/invitations", KEYS.operator, content=wrong).status_code == 400
        assert ask(server, "/api/enter", KEYS.operator, content=b"").status_code == 401
        entered = ask(server, "/api/enter", made["secret"], content=b"").json()
        assert entered == {"run": "test", "token": KEYS.worker, "authority": ""}
        assert ask(server, "/api/enter", made["secret"], content=b"").status_code == 410


def test_who_guesses_secrets_is_not_listened_to_for_long() -> None:
    limits = Limits(failures_per_s=0.01, failure_burst=3)
    with serving(limits=limits) as server:

        def guess() -> bool:
            try:
                assert ask(server, "/api/enter", "guess", content=b"").status_code == 401
            except httpx.HTTPError:
                return True
            return False

        until(guess, "the connection to be closed unread")


def test_invitations_are_made_listed_and_withdrawn_by_command(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(run_dir)
    assert run_command(["token", "make", folder, "--uses", "2", "--json"]) == 0
    made = msgspec.json.decode(capsys.readouterr().out)
    assert made["joins"][0].startswith("gangline join gl://127.0.0.1:")
    assert run_command(["token", "withdraw", folder, made["name"]]) == 0
    assert "is withdrawn; it had let in 0 of 2" in capsys.readouterr().out
    assert run_command(["token", "list", folder]) == 0
    out = capsys.readouterr().out
    assert made["name"] in out
    assert made["secret"] not in out
    assert run_command(["token", "withdraw", folder, "other"]) == 1
    assert "there is no invitation 'other'" in capsys.readouterr().err


def test_a_link_is_printed_for_every_way_to_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from gangline.launch.joining import inviting

    monkeypatch.setattr(inviting, "own_addresses", lambda: ["10.0.0.5", "fd00::5"])
    monkeypatch.setattr(socket, "gethostname", lambda: "desk")
    known = {"run": "r", "port": 1, "fingerprint": "f" * 27, "secret": "s"}
    ways = links_to(host="10.0.0.5", names=["desk.example.org"], **known)  # type: ignore[arg-type]
    assert [way.host for way in ways] == ["desk.example.org", "10.0.0.5", "fd00::5", "desk"]
    assert [way.host for way in links_to(host="10.9.9.9", **known)] == ["10.9.9.9"]  # type: ignore[arg-type]


def test_a_full_disk_lets_nobody_in_and_changes_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = invited(run_dir)
    name = list_invitations(run_dir)[0].name

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gangline.files.invitations.replace_plain", full)
    for act in (
        lambda: enter(link, link.secret),
        lambda: invited(run_dir),
        lambda: withdraw_invitation(run_dir, name),
    ):
        with pytest.raises(LaunchError, match="No space left on device"):
            act()
    monkeypatch.undo()
    assert [(one.used, one.state) for one in list_invitations(run_dir)] == [(0, "open")]
    assert enter(link, link.secret).run == "test"


def test_a_secret_is_not_made_where_it_would_be_read_on_its_way(tmp_path: Path) -> None:
    Announcement(run="test", url="ws://10.0.0.5:7700", pid=os.getpid()).write(tmp_path)
    with pytest.raises(UsageError, match="without TLS"):
        invited(tmp_path)


def fail_to_join(folder: Path) -> None:
    with undone_on_error(folder):
        (folder / "token").write_text("t")
        (folder / "tls").mkdir()
        (folder / "tls" / "key.pem").write_text("k")
        raise LaunchError("no")


def test_what_a_failed_join_put_into_a_folder_is_taken_out(tmp_path: Path) -> None:
    kept, made = tmp_path / "kept", tmp_path / "made"
    for folder in (kept, made):
        folder.mkdir()
    (kept / "mine").write_text("mine")
    for folder in (kept, made):
        with pytest.raises(LaunchError, match="no"):
            fail_to_join(folder)
    assert [path.name for path in kept.iterdir()] == ["mine"]
    assert not made.exists()
