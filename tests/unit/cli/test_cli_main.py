# SPDX-License-Identifier: Apache-2.0
"""The command as a whole: version, help, errors as text and as JSON, and a quick start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import gangline
from gangline.cli.main import run_command
from gangline.cli.output import exit_code_of, print_error
from gangline.spec.errors import LaunchError, LogError, UnsupportedError, UsageError


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"gangline {gangline.__version__}\n"


def test_help_is_shown_when_nothing_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([]) == 0
    shown = capsys.readouterr().out
    for verb in ("run", "report", "doctor"):
        assert verb in shown


def test_an_unknown_flag_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--spedes", "1,0.5", "train.py"]) == 2
    shown = capsys.readouterr()
    assert "No such option: --spedes" in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_an_unknown_verb_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["fly"]) == 2
    assert "No such command 'fly'" in capsys.readouterr().err


def test_parse_errors_are_json_when_json_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--json", "--nodes", "many", "train.py"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "UsageError"
    assert "Invalid value for '--nodes'" in error["message"]


def test_own_errors_are_json_when_json_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--json", "missing.py"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"].startswith("there is no script missing.py")


def test_a_json_flag_of_the_script_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "missing.py", "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error: there is no script missing.py" in shown.err


def test_brackets_in_a_message_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("use [[nodes]] and [bold]", kind="UsageError", as_json=False)
    assert capsys.readouterr().err == "error: use [[nodes]] and [bold]\n"


def test_a_message_of_another_machine_is_no_command_for_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_error("what it\x1b[8m says\x07\nis shown", kind="LaunchError", as_json=False)
    assert capsys.readouterr().err == "error: what it?[8m says?\nis shown\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [(UsageError("x"), 2), (UnsupportedError("x"), 2), (LaunchError("x"), 1), (LogError("x"), 1)],
)
def test_the_exit_code_tells_misuse_from_failure(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


def test_the_command_starts_without_torch() -> None:
    code = "import sys, gangline.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
