# SPDX-License-Identifier: Apache-2.0
"""Which files are brought to other machines, and which never are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gangline.launch.joining.code import select_files
from gangline.launch.program import Program
from gangline.spec.errors import UsageError


@pytest.fixture
def program(tmp_path: Path) -> Program:
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1")
    (tmp_path / "secret").write_text("x")
    return Program("train", (), script=script)


def names(program: Program, *include: str) -> list[str]:
    return [file.name for file in select_files(program, [Path(one) for one in include])]


def test_without_git_the_script_goes_alone_with_what_is_named(program: Program) -> None:
    assert names(program) == ["train.py"]
    assert names(program, "data") == ["data/a.csv", "train.py"]
    assert names(program, "data/*.csv") == ["data/a.csv", "train.py"]


def test_with_git_what_it_knows_goes_and_links_do_not(program: Program, tmp_path: Path) -> None:
    (tmp_path / "tool.sh").write_text("#!/bin/sh\n")
    (tmp_path / "tool.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("/etc/passwd")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "tool.sh", "link"], check=True)
    assert names(program) == ["tool.sh", "train.py"]
    assert [file.is_executable for file in select_files(program)] == [True, False]


@pytest.mark.parametrize("pattern", ["../x", "/etc/passwd", "nothing*"])
def test_names_outside_and_names_of_nothing_are_refused(program: Program, pattern: str) -> None:
    with pytest.raises(UsageError, match="--include"):
        names(program, pattern)


def test_too_much_is_refused(program: Program) -> None:
    with pytest.raises(UsageError, match="would be brought"):
        select_files(program, max_bytes=4)
