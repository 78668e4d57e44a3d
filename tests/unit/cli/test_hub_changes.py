# SPDX-License-Identifier: Apache-2.0
"""Leaving, as the control function decides it, and the words of `gangline chaos`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gangline.cli.live.cmd_chaos import is_of_run, parse_duration, parse_kinds
from gangline.cli.main import run_command
from gangline.control import (
    ControlOptions,
    ControlState,
    PublishView,
    WorkersJoined,
    WorkersLeft,
    decide,
)
from gangline.protocol.launch import Launch
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def state_of(*workers: int) -> ControlState:
    state = ControlState.begin(ControlOptions(global_batch=12))
    return decide(state, WorkersJoined(workers=workers), 0.0)[0]


def test_those_that_stay_get_a_planned_view() -> None:
    _, commands = decide(state_of(4, 5, 6), WorkersLeft(workers=(5,)), 0.0)
    (publish,) = [command for command in commands if isinstance(command, PublishView)]
    assert publish.view.members == (4, 6)
    assert publish.view.shares == (6, 6)
    assert publish.view.group == 1
    assert publish.view.reason == "worker 5 left; 2 of 3 members go on"
    assert not publish.is_recovery


@pytest.mark.parametrize("leaving", [(4, 5, 6), (9,)])
def test_nothing_is_decided_when_nobody_or_everybody_would_be_left(
    leaving: tuple[int, ...],
) -> None:
    assert decide(state_of(4, 5, 6), WorkersLeft(workers=leaving), 0.0)[1] == []


# --- chaos -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("15s", 15), ("500ms", 0.5), ("2m", 120), ("1.5h", 5400), ("3", 3)]
)
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text, flag="--every") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "0s", "-1s", "5 weeks"])
def test_the_message_says_how_a_time_is_written(text: str) -> None:
    with pytest.raises(UsageError, match=r"--every .*: write a time above 0, such as 15s"):
        parse_duration(text, flag="--every")


def test_an_unknown_kind_of_fault_is_named() -> None:
    assert parse_kinds("kill, hang") == ["kill", "hang"]
    with pytest.raises(UsageError, match="--kinds kill,poke: 'poke' is not one of kill, hang"):
        parse_kinds("kill,poke")


def test_chaos_says_so_when_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["chaos", str(tmp_path)]) == 1
    assert "no coordinator has announced itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "folder", "is_victim"), [("r", "run", True), ("s", "run", False), ("r", "on", False)]
)
def test_only_workers_of_the_run_are_touched(
    tmp_path: Path, run: str, folder: str, is_victim: bool
) -> None:
    launch = Launch(
        run=run, run_dir=str(tmp_path / folder), worker=0, workers=1, token_file="token"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", "print('here', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **launch.to_environment()},
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # a process that is only just being made has no environment yet
        assert is_of_run(process.pid, "r", tmp_path / "run") == is_victim
    finally:
        process.communicate(b"\n")


def test_a_process_that_nobody_launched_is_not_touched(tmp_path: Path) -> None:
    assert not is_of_run(os.getpid(), "r", tmp_path)
    assert not is_of_run(2**22 + 1, "r", tmp_path)
