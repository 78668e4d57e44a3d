# SPDX-License-Identifier: Apache-2.0
"""Bringing code from a first machine that is honest, hostile, or unplugged."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from serving import serving

from gangline.cli.main import run_command
from gangline.coordinator.server import Keys
from gangline.files.announcement import Announcement
from gangline.files.code import write_code
from gangline.files.tokens import write_token
from gangline.launch.joining import contact as contact_module
from gangline.launch.joining import fetching
from gangline.launch.joining.contact import Contact
from gangline.launch.joining.fetching import fetch_code, offered_code
from gangline.spec.errors import GanglineError, LaunchError
from gangline.spec.machines.code import CodeFile, CodeManifest
from gangline.spec.machines.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gangline.coordinator.server import CoordinatorServer

CONTENTS = {"train.py": b"print(1)\n", "pkg/run.sh": b"#!/bin/sh\n" * 20000, "empty": b""}


def manifest(**changes: Any) -> CodeManifest:
    files = tuple(
        CodeFile(
            name=name,
            size=len(content),
            digest=hashlib.sha256(content).hexdigest(),
            is_executable=name.endswith(".sh"),
        )
        for name, content in CONTENTS.items()
    )
    return CodeManifest(**{"files": files, "script": "train.py", **changes})


class Line:
    """What a first machine sends, whatever it is asked."""

    def __init__(self, content: bytes, *, ends: Exception | None = None) -> None:
        self._stream = io.BytesIO(content)
        self._ends = ends

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[Line]:
        yield self

    def read1(self, size: int) -> bytes:
        piece = self._stream.read(size)
        if not piece and self._ends is not None:
            raise self._ends
        return piece


def fetch_from(line: Line, folder: Path) -> Path:
    return fetch_code(line, manifest(), folder)  # type: ignore[arg-type]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CoordinatorServer]:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    keys = Keys.in_folder(run_dir, worker_file=run_dir / "token")
    with serving(keys=keys, run_dir=run_dir) as made:
        Announcement(run="test", url=made.url, pid=os.getpid()).write(run_dir)
        yield made


def test_code_comes_as_it_was_offered(server: CoordinatorServer, tmp_path: Path) -> None:
    contact = Contact(url=server.url, token_file=tmp_path / "run" / "token")
    assert offered_code(contact) is None
    write_code(tmp_path / "run", manifest(), CONTENTS.values())
    offered = offered_code(contact)
    assert offered == manifest()
    folder = fetch_code(contact, manifest(), tmp_path)
    assert {name: (folder / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert (folder / "pkg" / "run.sh").stat().st_mode & 0o777 == 0o755 & ~_umask()
    assert (folder / "train.py").stat().st_mode & 0o111 == 0


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (Line(b"print(2)\n" + b"".join([*CONTENTS.values()][1:])), "'train.py' is not what was"),
        (Line(b"".join(CONTENTS.values()) + b"x"), "more than it announced"),
        (Line(b"print"), "ended within 'train.py', 4 bytes too early"),
        (Line(b"print", ends=TimeoutError("timed out")), "was lost while it sent.*timed out"),
        (Line(b"print", ends=ConnectionResetError(104, "reset")), "was lost while it sent"),
    ],
)
def test_what_is_not_as_announced_leaves_nothing(line: Line, why: str, tmp_path: Path) -> None:
    with pytest.raises(GanglineError, match=why):
        fetch_from(line, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_first_machine_that_is_unplugged_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends half of a file, and then nothing more, not even an end."""
    monkeypatch.setattr(contact_module, "_TIMEOUT_S", 0.3)
    token = tmp_path / "token"
    write_token(token)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 200009\r\n\r\nprint"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held: list[socket.socket] = []

        def send_half() -> None:
            line, _ = listening.accept()
            held.append(line)
            line.sendall(head)

        thread = threading.Thread(target=send_half, daemon=True)
        thread.start()
        url = f"ws://127.0.0.1:{listening.getsockname()[1]}"
        contact = Contact(url=url, token_file=token)
        started_s = time.monotonic()
        with pytest.raises(LaunchError, match=r"lost while it sent its code \(timed out\)"):
            fetch_code(contact, manifest(), tmp_path)
        assert time.monotonic() - started_s < 5
        thread.join()
        held[0].close()
    assert list(tmp_path.iterdir()) == [token]


def test_a_first_machine_that_trickles_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 100_000, 40))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    line = Line(b"".join(CONTENTS.values()))
    monkeypatch.setattr(fetching, "_PIECE", 1)
    with pytest.raises(LaunchError, match="comes too slowly"):
        fetch_from(line, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetching.os, "fdopen", full)
    with pytest.raises(LaunchError, match=r"No space left on device.*make room"):
        fetch_from(Line(b"".join(CONTENTS.values())), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_already_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine").write_text("mine")
    with pytest.raises(LaunchError, match="cannot be written"):
        fetch_from(Line(b"".join(CONTENTS.values())), tmp_path)
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ('[{"name": "../x.py", "size": 1, "digest": "%s"}]', "outside of the code's folder"),
        ('[{"name": "x.py", "size": 99999999999, "digest": "%s"}]', "more than 64.0 MiB"),
        ('[{"name": "x.py", "size": 1, "digest": "%s", "mode": 2560}]', "unknown field"),
        ("[]", "'x.py' is none of its files"),
    ],
)
def test_join_refuses_hostile_code_and_leaves_nothing(
    server: CoordinatorServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: str,
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = files.replace("%s", "0" * 64)
    document = f'{{"script": "x.py", "files": {listed}}}'
    monkeypatch.setattr(
        "gangline.coordinator.server.reception.read_manifest", lambda run_dir: _Raw(document)
    )
    monkeypatch.setattr("gangline.coordinator.server.reception._answered", _answer_raw)
    assert run_command(["join", "run", "--yes", "--run-dir", "mine"]) != 0
    assert why in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


class _Raw(str):
    pass


def _answer_raw(value: object) -> Any:
    from starlette.responses import Response

    return Response(str(value).encode(), media_type="application/json")


def test_without_anybody_to_ask_no_code_is_run(
    server: CoordinatorServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run_command(["join", "run"]) == 2
    assert "offers no code" in capsys.readouterr().err
    write_code(tmp_path / "run", manifest(arguments=("\x1b[2J",)), CONTENTS.values())
    assert run_command(["join", "run"]) == 2
    said = capsys.readouterr()
    assert f"fingerprint {manifest(arguments=(chr(27) + '[2J',)).fingerprint}" in said.out
    assert "train.py '\\x1b[2J'" in said.out
    assert "give --yes if it shall" in said.err
    assert list((tmp_path / "runs").iterdir()) == []


def test_join_compares_the_machines_before_anything_is_brought(
    server: CoordinatorServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    theirs = Surroundings(python="3.1.0", packages={"no-such-thing": "1.0"})
    write_code(tmp_path / "run", manifest(surroundings=theirs), CONTENTS.values())
    assert run_command(["join", "run", "--yes"]) == 2
    said = capsys.readouterr()
    assert "3.1.0 there; to mend it: python3.1 -m venv" in said.err
    assert "no-such-thing is missing here, 1.0 there; to mend it: pip install" in said.err
    assert "--allow-differences" in said.err
    assert said.out == ""
    assert run_command(["join", "run", "--allow-differences"]) == 2
    said = capsys.readouterr()
    assert said.err.count("warning:") == 2
    assert "give --yes if it shall" in said.err
    assert list((tmp_path / "runs").iterdir()) == []
