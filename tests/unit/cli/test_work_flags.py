# SPDX-License-Identifier: Apache-2.0
"""Flags about this machine's own workers are refused where it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gangline.cli.main import run_command

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = [("--devices", "cpu"), ("--notice", "sigterm"), ("--notice-deadline", "9")]


@pytest.mark.parametrize(("flag", "value"), FLAGS)
def test_a_coordinator_alone_has_no_workers(
    capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    assert run_command(["up", "--workers", "2", flag, value]) == 2
    assert f"{flag} is for a job with a script" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "value"), FLAGS)
def test_nor_has_one_that_does_not_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert run_command(["up", "--no-work", flag, value, str(script)]) == 2
    assert f"{flag} is about workers here, and --no-work" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["run", "up"])
@pytest.mark.parametrize(
    ("flag", "value"), [("--devices", "x"), ("--notice", "x"), ("--notice-deadline", "0")]
)
def test_a_wrong_value_is_named_with_its_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, flag: str, value: str
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert run_command([verb, flag, value, str(script)]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert flag in shown
