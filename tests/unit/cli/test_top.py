# SPDX-License-Identifier: Apache-2.0
"""`gangline top`, by a folder, an address or a link; and the link that `gangline dashboard` prints."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from serving import KEYS, ask, serving

from gangline.cli.live import cmd_top
from gangline.cli.live.screen import TopScreen, summary
from gangline.cli.main import run_command
from gangline.files.announcement import Announcement
from gangline.files.tokens import OBSERVER_TOKEN, OPERATOR_TOKEN
from gangline.launch.watching import find_stream
from gangline.protocol.live import Snapshot, WorkerNow
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.coordinator.server import CoordinatorServer


def worker(number: int, **fields: Any) -> WorkerNow:
    known: dict[str, Any] = {
        "worker": number, "host": "desk", "pid": 1, "state": "training", "is_connected": True,
        "is_member": True, "share": 20, "samples_per_s": 40.0, "alone_per_s": 200.0, "busy": 0.2,
        "wait": 0.6, "step": 9, "cpu": 1.0, "memory_bytes": 5_000_000,
    }  # fmt: skip
    return WorkerNow(**{**known, **fields})


def snapshot(**fields: Any) -> Snapshot:
    known: dict[str, Any] = {
        "t": 1.0, "run": "digits", "expected_workers": 2, "view": 1, "step": 9, "epoch": 2,
        "sync": "full", "samples_per_s": 80.0, "parts_per_s": 100.0, "loss": 0.25,
        "workers": [
            worker(0),
            worker(1, state="spare", is_member=False, busy=None, wait=None, samples_per_s=None),
        ],
    }  # fmt: skip
    return Snapshot(**{**known, **fields})


def drawn(screen: TopScreen, width: int = 140) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as shown:
        console.print(screen.draw(width))
    return shown.get()


def test_one_line_says_how_the_job_stands() -> None:
    line = summary(snapshot())
    for part in ("80 samples/s", "80% of the sum", "epoch 2", "step 9", "loss 0.25", "1 of 2"):
        assert part in line
    assert "paused" in summary(snapshot(is_paused=True))
    assert "epoch 3/10" in summary(snapshot(epochs=10)), "as on the line of progress"
    assert "- samples/s" in summary(snapshot(samples_per_s=None, loss=None, epoch=-1))


def test_a_screen_has_a_row_for_each_worker_and_the_last_decisions() -> None:
    screen = TopScreen()
    screen.now = snapshot(run="evil\x1b[2J", workers=[worker(0, host="\x1b]0;x\x07h"), worker(1)])
    assert screen.note(Decision(t=1, what="exclude", reason="because\x1b[31m", numbers={}))
    assert not screen.note(Decision(t=1, what="publish_view", reason="dull", numbers={}))
    text = drawn(screen)
    assert "████▒▒▒▒············" in text
    assert "because" in text
    assert "dull" not in text
    assert "\x1b" not in text


def test_a_narrow_screen_has_fewer_columns_and_cuts_no_number() -> None:
    screen = TopScreen()
    figures = {
        "share": 12345,
        "samples_per_s": 1234567.0,
        "alone_per_s": 7654321.0,
        "step": 8765432,
    }
    busy = worker(0, host="a-long-name-of-a-host", memory_bytes=123_456_000_000, **figures)
    screen.now = snapshot(workers=[busy, worker(1, state="lost", is_connected=False)])
    everything = ["12345", "1,234,567", "7,654,321", "60%", "8765432", "1.0", "123,456 MB"]
    shown = {}
    for width in range(40, 160):
        (row,) = (line for line in drawn(screen, width).splitlines() if line.startswith("0 "))
        numbers = [one for one in row.split("  ") if one.strip() and any(map(str.isdigit, one))]
        shown[width] = [one.strip() for one in numbers[1:]]
        assert set(shown[width]) <= set(everything), row
    assert (len(shown[40]), len(shown[60]), shown[120]) == (2, 4, everything)
    assert "lost, not connected" in drawn(screen, 140)


def announce(server: CoordinatorServer, folder: Path) -> None:
    Announcement(run="test", url=server.url, pid=os.getpid()).write(folder)
    for name, token in ((OBSERVER_TOKEN, KEYS.observer), (OPERATOR_TOKEN, KEYS.operator)):
        (folder / name).write_text(token)
        (folder / name).chmod(0o600)


@pytest.mark.parametrize("way", ["folder", "address", "link"])
def test_a_job_is_followed_until_it_is_over(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cmd_top, "PATIENCE_S", 0.2)
    said: list[str] = []
    with serving() as server:

        def say(text: str) -> None:
            if not said:
                server.stop()
            said.append(text)

        monkeypatch.setattr(cmd_top, "say", say)
        announce(server, tmp_path)
        asked = [str(tmp_path)]
        if way == "address":
            asked = [server.url.removeprefix("ws://")]
            asked += ["--token-file", str(tmp_path / OBSERVER_TOKEN)]
        elif way == "link":
            code = ask(server, "/api/dashboard/code", KEYS.observer, content=b"{}").json()["code"]
            asked = [f"{server.url.replace('ws', 'http', 1)}/dashboard#{code}"]
        assert run_command(["top", *asked]) == 0
    assert "0 of 2 workers" in said[0]
    assert said[-1] == "the run is over"


def test_what_cannot_be_followed_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("nonsense", "10.0.0.5:7700", "http://127.0.0.1:1/other#code"):
        with pytest.raises(UsageError):
            find_stream(place, token_file=None, authority=None)
    with serving() as server:
        url = server.url.replace("ws", "http", 1)
        assert run_command(["top", f"{url}/dashboard#wrong"]) == 2
        assert "this code is wrong" in capsys.readouterr().err


def read_until(terminal: int, wanted: bytes | None) -> bytes:
    """What a terminal shows, up to some text; to its end where there is none."""
    seen = b""
    while wanted is None or wanted not in seen:
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            break
    return seen


def test_q_quits_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with serving() as server:
        announce(server, tmp_path)
        terminal, inner = pty.openpty()
        command = [sys.executable, "-m", "gangline.cli.main", "top", str(tmp_path)]
        child = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner)
        os.close(inner)
        seen = read_until(terminal, b"quit")
        os.write(terminal, b"q")
        seen += read_until(terminal, None)
        os.close(terminal)
        assert child.wait(20) == 0, seen.decode()
    assert b"\x1b[?1049l" in seen, "the screen of before is shown again"


def test_a_link_is_printed_for_each_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as server:
        announce(server, tmp_path)
        assert run_command(["dashboard", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"{server.url.replace('ws', 'http', 1)}/dashboard#")
        assert "as observer" in said
        assert run_command(["dashboard", str(tmp_path), "--operator"]) == 0
        assert "as operator" in capsys.readouterr().out
