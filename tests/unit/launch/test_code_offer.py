# SPDX-License-Identifier: Apache-2.0
"""Which code a first machine offers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from gangline.files.code import CONTENT_FILE, read_contents, read_manifest
from gangline.launch.joining.code import Collected, offer_code
from gangline.launch.program import find_program
from gangline.spec.errors import UsageError


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script and more, as the working folder."""
    folder = tmp_path / "work"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("import pkg.model\n")
    (folder / "pkg" / "model.py").write_text("x = 1\n")
    (folder / "pkg" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "pkg" / "run.sh").chmod(0o755)
    (folder / "notes.txt").write_text("mine")
    monkeypatch.chdir(folder)
    return folder


def offer(script: str = "train.py", **options: Any) -> Collected:
    run_dir = Path.cwd().parent / "run"
    run_dir.mkdir(exist_ok=True)
    program = find_program(Path(script), ["--epochs", "3"], None, verb="up")
    return offer_code(program, run_dir, **options)


def names(offered: Collected) -> list[str]:
    return [one.name for one in offered.manifest.files]


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def test_without_git_the_script_and_what_is_named_is_offered(work: Path) -> None:
    assert names(offer()) == ["train.py"]
    offered = offer(include=[Path("pkg")])
    assert names(offered) == ["train.py", "pkg/model.py", "pkg/run.sh"]
    assert [one.is_executable for one in offered.manifest.files] == [False, False, True]
    assert offered.manifest.command == ("train.py", "--epochs", "3")


def test_what_is_imported_and_not_offered_is_named(work: Path) -> None:
    (work / "helper.py").write_text("import notes\n")
    (work / "train.py").write_text("import pkg.model, helper, torch, notes\n")
    assert offer().missing == ("helper.py", "pkg")
    assert offer(include=[Path("pkg"), Path("helper.py")]).missing == ()


def test_what_git_knows_is_offered_as_it_is_now(work: Path) -> None:
    git("init", "-q")
    (work / "link.py").symlink_to("train.py")
    (work / "gone.py").write_text("")
    git("add", "train.py", "pkg", "link.py", "gone.py")
    (work / "gone.py").unlink()
    (work / "pkg" / "model.py").write_text("x = 2\n")
    offered = offer()
    assert names(offered) == ["train.py", "pkg/model.py", "pkg/run.sh"]
    assert offered.left_out == ("link.py",)
    run_dir = work.parent / "run"
    assert b"x = 2\n" in b"".join(read_contents(run_dir))
    assert (run_dir / CONTENT_FILE).stat().st_mode & 0o077 == 0


def test_what_is_offered_stays_what_was_begun_with(work: Path) -> None:
    offered = offer()
    (work / "train.py").write_text("broken(")
    run_dir = work.parent / "run"
    assert read_manifest(run_dir) == offered.manifest
    assert b"".join(read_contents(run_dir)) == b"import pkg.model\n"


def test_code_that_is_not_offered_is_only_compared_with(work: Path) -> None:
    (work / "train.py").write_text("import msgspec\n")
    told = offer(is_offered=False, compare_samples=3, max_bytes=1).manifest
    assert read_manifest(work.parent / "run") == told
    assert (told.files, told.is_offered, told.compare_samples) == ((), False, 3)
    assert told.surroundings is not None
    assert "msgspec" in told.surroundings.packages
    assert b"".join(read_contents(work.parent / "run")) == b""


def test_a_script_is_run_in_the_folder_that_it_was_run_in(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work / "pkg")
    (work.parent / "work" / "run").mkdir()
    assert offer("../train.py").manifest.folder == "pkg"
    monkeypatch.chdir(work.parent)
    (work.parent.parent / "run").mkdir(exist_ok=True)
    assert offer("work/train.py").manifest.folder == ""


def test_a_module_comes_with_its_package(work: Path) -> None:
    program = find_program(None, None, "pkg.model", verb="up")
    run_dir = work.parent / "run"
    run_dir.mkdir()
    offered = offer_code(program, run_dir)
    assert names(offered) == ["pkg/model.py"]
    assert offered.manifest.command == ("-m", "pkg.model")


def test_too_much_code_is_refused_with_what_to_do(work: Path) -> None:
    (work / "data.bin").write_bytes(bytes(2 << 20))
    with pytest.raises(UsageError, match=r"more than 1.0 MiB \(at data.bin, 2.0 MiB\).*--max-code"):
        offer(include=[Path("data.bin")], max_bytes=1 << 20)


def test_what_lies_elsewhere_is_not_offered(work: Path) -> None:
    (work.parent / "other.py").write_text("")
    with pytest.raises(UsageError, match="is not below"):
        offer(include=[Path("../other.py")])
    with pytest.raises(UsageError, match="no such file"):
        offer(include=[Path("none")])
    (work / "pkg" / "out").symlink_to(work.parent)
    offered = offer(include=[Path("pkg")])
    assert names(offered) == ["train.py", "pkg/model.py", "pkg/run.sh"]
    assert offered.left_out == ("pkg/out",)
