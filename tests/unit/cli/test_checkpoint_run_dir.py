# SPDX-License-Identifier: Apache-2.0
"""`gangline run --resume` may use the folder of the run before, which is put aside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline.files.announcement import Announcement
from gangline.launch.folder import make_run_dir
from gangline.spec.errors import UsageError

SCRIPT = Path("train.py")


def leave_a_run(folder: Path, text: str) -> None:
    (folder / "events").mkdir(parents=True)
    (folder / "events" / "worker-0.jsonl").write_text(text)
    (folder / "token").write_text("secret")
    (folder / "journal.jsonl").write_text("{}")
    (folder / "kept").mkdir(exist_ok=True)


def test_what_earlier_runs_wrote_is_put_aside_each_in_its_folder(tmp_path: Path) -> None:
    for text in ("first", "second"):
        leave_a_run(tmp_path, text)
        name, folder = make_run_dir(SCRIPT, name="mine", run_dir=tmp_path, resume=True)
        assert (name, folder) == ("mine", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier", "kept"]
    for number, text in (("1", "first"), ("2", "second")):
        aside = tmp_path / "earlier" / number
        assert (aside / "events" / "worker-0.jsonl").read_text() == text
        assert (aside / "journal.jsonl").exists()


def test_a_new_folder_is_made_as_without_the_flag(tmp_path: Path) -> None:
    assert make_run_dir(SCRIPT, name=None, run_dir=tmp_path / "new", resume=True)[0] == "new"
    assert list((tmp_path / "new").iterdir()) == []


def test_the_folder_is_refused_without_the_flag(tmp_path: Path) -> None:
    leave_a_run(tmp_path, "first")
    with pytest.raises(UsageError, match="already holds a run"):
        make_run_dir(SCRIPT, name=None, run_dir=tmp_path)


def test_a_run_that_goes_on_is_not_put_aside(tmp_path: Path) -> None:
    leave_a_run(tmp_path, "first")
    Announcement(run="mine", url="ws://127.0.0.1:1", pid=os.getpid()).write(tmp_path)
    with pytest.raises(UsageError, match=r"still going on .*end it before you resume it"):
        make_run_dir(SCRIPT, name=None, run_dir=tmp_path, resume=True)
    assert (tmp_path / "events").exists()


def test_a_coordinator_that_is_gone_hinders_nobody(tmp_path: Path) -> None:
    leave_a_run(tmp_path, "first")
    announcement = Announcement(run="mine", url="ws://127.0.0.1:1", pid=os.getpid())
    announcement.write(tmp_path)
    os.utime(
        Announcement.path_in(tmp_path), (1.0, 1.0)
    )  # before this process, which has its number
    make_run_dir(SCRIPT, name=None, run_dir=tmp_path, resume=True)
    assert not (tmp_path / "events").exists()
