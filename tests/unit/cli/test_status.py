# SPDX-License-Identifier: Apache-2.0
"""What `gangline status` says to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gangline.cli.main import run_command
from gangline.launch.joining.contact import RunContact
from gangline.protocol.status import Status, WorkerStatus
from gangline.spec.view import View

if TYPE_CHECKING:
    from pathlib import Path


def worker(number: int, state: str, *, is_connected: bool = True) -> WorkerStatus:
    return WorkerStatus(
        worker=number, host="desk", pid=7, is_connected=is_connected, state=state, step=4
    )


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_pause_and_the_mode_are_named(
    is_paused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = Status(
        run="r", expected_workers=3, step=4, decisions=[], is_paused=is_paused, sync="ssp(2)",
        view=View(number=2, members=(0, 1), shares=(8, 8), group=0),
        workers=[worker(0, "training"), worker(1, "lost", is_connected=False), worker(2, "spare")],
    )  # fmt: skip
    monkeypatch.setattr(RunContact, "__init__", lambda self, *_, **__: None)
    monkeypatch.setattr(RunContact, "ask", lambda self, path: msgspec.json.encode(told))
    assert run_command(["status", str(tmp_path)]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("r: step 4, view 2, ssp(2)")
    assert ("paused" in head) == is_paused
    assert ("paused" in rows[0]) == is_paused
    assert ("training" in rows[0]) != is_paused
    assert "lost, not connected" in rows[1]
    assert "spare" in rows[2]
