# SPDX-License-Identifier: Apache-2.0
"""A worker that hung in a loop over rows before `prepare`, and wakes up when the others went on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gangline.cli.main import run_command
from gangline.eventlog import read_run
from gangline.spec.event import RunEnded

if TYPE_CHECKING:
    from pathlib import Path

# Worker 1 stops with its first row. Worker 0 does all rows without it, wakes it, and waits until its
# process is gone.
SCRIPT = """\
import os, signal, time
from pathlib import Path

import gangline


def squares(rows):
    if gangline.rank() == 1 and not Path("pid").exists():
        Path("pid.new").write_text(str(os.getpid()))
        os.rename("pid.new", "pid")
        os.kill(os.getpid(), signal.SIGSTOP)
    while not Path("pid").exists():
        time.sleep(0.01)
    return [row * row for row in rows]


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


gangline.init()
options = {"where": "job", "scheme": "SS/SS", "workers": 1}
first = gangline.map(squares, range(20), **options)
pid = int(Path("pid").read_text())
os.kill(pid, signal.SIGCONT)
while is_there(pid):
    time.sleep(0.05)
again = gangline.map(squares, range(20), **options)
Path("found").write_text(f"{first == again == [row * row for row in range(20)]}")
"""


@pytest.mark.timeout(120)
def test_a_worker_that_was_left_behind_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.py").write_text(SCRIPT)
    flags = ["--everybody", "--nodes", "2", "--run-dir", "run", "--json"]
    assert run_command(["run", *flags, "rows.py"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "done"
    assert (tmp_path / "found").read_text() == "True"
    (ended,) = [one for one in read_run(tmp_path / "run", notes=[]) if isinstance(one, RunEnded)]
    assert ended.reason == "done without worker 1"
    (said,) = [path.read_text() for path in (tmp_path / "run").rglob("*1*.log")]
    assert "LeftBehindError: gangline.map(" in said
