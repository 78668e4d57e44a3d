# SPDX-License-Identifier: Apache-2.0
"""The secret of an invitation: where it comes from, and where it cannot be read."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gangline.cli.run import secret as secret_module
from gangline.cli.run.secret import SECRET_VARIABLE, find_secret
from gangline.spec.errors import UsageError
from gangline.spec.machines.link import JoinLink

BARE = JoinLink(host="10.0.0.5", port=1, run="r", fingerprint="f" * 27)
FULL = JoinLink(host="10.0.0.5", port=1, run="r", fingerprint="f" * 27, secret="of-the-link")


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))


def test_a_secret_comes_from_wherever_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text("of-a-file\n")
    assert find_secret(FULL, None) == "of-the-link"
    assert find_secret(BARE, path) == "of-a-file"
    monkeypatch.setattr(sys, "stdin", io.StringIO("of-a-pipe\n"))
    assert find_secret(BARE, Path("-")) == "of-a-pipe"
    monkeypatch.setattr(sys, "stdin", io.StringIO("of-a-pipe\n"))
    assert find_secret(BARE, None) == "of-a-pipe"
    monkeypatch.setenv(SECRET_VARIABLE, "of-a-variable")
    assert find_secret(BARE, None) == "of-a-variable"
    assert SECRET_VARIABLE not in os.environ  # workers do not inherit it


def test_a_secret_is_asked_for_where_somebody_can_type(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = io.StringIO()
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", typed)
    asked: list[bool] = []

    def prompt(text: str, *, hide_input: bool) -> str:
        asked.append(hide_input)
        return "typed"

    monkeypatch.setattr(secret_module.typer, "prompt", prompt)
    assert find_secret(BARE, None) == "typed"
    assert asked == [True]


def test_a_missing_or_strange_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no secret on standard input"):
        find_secret(BARE, None)
    with pytest.raises(UsageError, match="cannot read the secret in"):
        find_secret(BARE, tmp_path / "none")
    path = tmp_path / "secret"
    path.write_text("two words")
    with pytest.raises(UsageError, match="is none: it is letters"):
        find_secret(BARE, path)
    with pytest.raises(UsageError, match="the link has a secret already"):
        find_secret(FULL, path)


@pytest.mark.skipif(sys.platform != "linux", reason="the process list is read in /proc")
def test_a_secret_on_the_command_line_is_taken_out_of_the_process_list() -> None:
    """It runs the command itself, which then waits for a coordinator that does not answer."""
    secret = "SecretOfThisVeryTest"
    program = (
        "import socket, sys\n"
        "from gangline.cli.main import run_command\n"
        "listening = socket.create_server(('127.0.0.1', 0))\n"
        "link = sys.argv[1].replace(':1/', f':{listening.getsockname()[1]}/')\n"
        "run_command(['join', link, __import__('gangline').__file__])\n"
    )
    command = [sys.executable, "-c", program, f"gl://127.0.0.1:1/r#.{secret}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    path = Path(f"/proc/{process.pid}/cmdline")
    try:
        shown = path.read_bytes()
        deadline = time.monotonic() + 30
        while b"****" not in shown and time.monotonic() < deadline:
            time.sleep(0.05)
            shown = path.read_bytes()
    finally:
        process.kill()
        process.wait()
    assert secret.encode() not in shown
    assert b"gl://127.0.0.1:1/r#." + b"*" * len(secret) in shown
