# SPDX-License-Identifier: Apache-2.0
"""Links and pipes that somebody put into a run folder: not followed, not waited for, not written to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from gangline.cli.run.progress import OutputFollower
from gangline.coordinator.server.journal import JOURNAL_NAME, open_journal
from gangline.engines.local import LocalEngine, WorkerCommand
from gangline.engines.logtail import read_tail
from gangline.eventlog import EventWriter, NullWriter, log_path
from gangline.files.announcement import Announcement, read_announcement
from gangline.files.plainfile import open_plain, read_plain, replace_plain
from gangline.files.tls import TLS_FILE, TlsFiles, read_tls_files
from gangline.files.tokens import read_token, write_token
from gangline.launch.folder import make_run_dir
from gangline.spec.errors import GanglineError, LaunchError, UsageError
from gangline.spec.event import Decision
from gangline.worker.checkpoint.files import CheckpointFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TLS = TlsFiles(certificate="/c", key="/k", authority="/a")
HERE = Announcement(run="r", url="ws://127.0.0.1:1", pid=1)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file outside of the run folder that must stay as it is."""
    path = tmp_path / "victim"
    path.write_text("do not touch this\n")
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


def test_plain_files_are_opened_and_nothing_else_is(victim: Path, run_dir: Path) -> None:
    link, pipe = run_dir / "link", run_dir / "pipe"
    link.symlink_to(victim)
    os.mkfifo(pipe)
    assert read_plain(victim) == b"do not touch this\n"
    with pytest.raises(OSError, match="it is a link"):
        open_plain(link)
    with pytest.raises(OSError, match="it is not a plain file"):
        open_plain(pipe)
    with pytest.raises(IsADirectoryError):
        open_plain(run_dir)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("coordinator.json", read_announcement),
        (TLS_FILE, read_tls_files),
        (JOURNAL_NAME, lambda run_dir: open_journal(run_dir, NullWriter())),
    ],
)
@pytest.mark.parametrize("what", ["link", "pipe"])
def test_a_links_target_is_never_read(
    victim: Path, run_dir: Path, name: str, read: Callable[[Path], object], what: str
) -> None:
    path = run_dir / name
    if what == "link":
        path.symlink_to(victim)
    else:
        os.mkfifo(path)
    with pytest.raises(GanglineError, match=name) as refused:
        read(run_dir)
    assert "do not touch" not in str(refused.value)
    assert victim.read_text() == "do not touch this\n"


@pytest.mark.parametrize(
    ("name", "write"), [("coordinator.json", HERE.write), (TLS_FILE, TLS.write)]
)
def test_a_link_is_replaced_and_its_target_left_alone(
    victim: Path, run_dir: Path, name: str, write: Callable[[Path], None]
) -> None:
    path = run_dir / name
    path.symlink_to(victim)
    (run_dir / f"{name}.{os.getpid()}").symlink_to(victim)
    write(run_dir)
    assert not path.is_symlink()
    assert victim.read_text() == "do not touch this\n"
    assert [found.name for found in run_dir.iterdir()] == [name]


def test_a_file_is_put_in_its_place_in_one_piece(run_dir: Path) -> None:
    path = run_dir / "file"
    for content in (b"first", b"second"):
        replace_plain(path, content)
        assert read_plain(path) == content
    assert list(run_dir.iterdir()) == [path]


def test_events_are_lost_rather_than_written_through_a_link(victim: Path, run_dir: Path) -> None:
    path = log_path(run_dir, "worker 0")
    path.parent.mkdir()
    path.symlink_to(victim)
    with EventWriter(path, run="r", source="worker 0") as events:
        events.write(Decision(t=0.0, what="w", reason="r", numbers={}))
        assert events.problem is not None
        assert "link" in events.problem
    assert victim.read_text() == "do not touch this\n"


def test_a_workers_output_is_not_written_through_a_link(victim: Path, run_dir: Path) -> None:
    log = run_dir / "workers" / "0.log"
    log.parent.mkdir()
    log.symlink_to(victim)
    command = WorkerCommand(
        worker=0, arguments=("-c", "print('over it')"), environment=dict(os.environ), log=log
    )
    with pytest.raises(LaunchError, match="it is a link"), LocalEngine([command]) as engine:
        engine.start()
    assert victim.read_text() == "do not touch this\n"


def test_a_link_in_place_of_a_workers_output_is_not_shown(victim: Path, run_dir: Path) -> None:
    log = run_dir / "0.log"
    log.symlink_to(victim)
    console: Any = Console(file=(run_dir / "shown").open("w"))
    follower = OutputFollower(0, log, console, has_prefix=False, is_shown=True)
    follower.close()
    console.file.close()
    assert read_tail(log) == ""
    assert (run_dir / "shown").read_text() == ""


def test_the_marker_of_the_newest_checkpoint_is_not_written_through_a_link(
    victim: Path, run_dir: Path
) -> None:
    folder = CheckpointFolder(run_dir)
    (run_dir / f".writing-latest-{os.getpid()}").symlink_to(victim)
    (run_dir / "latest").symlink_to(victim)
    folder.move_latest(2)
    assert folder.latest() == 2
    assert victim.read_text() == "do not touch this\n"


def test_a_token_file_may_be_a_link_of_yours_but_no_pipe(run_dir: Path) -> None:
    token = write_token(run_dir / "token")
    (run_dir / "mine").symlink_to(run_dir / "token")
    assert read_token(run_dir / "mine") == token
    os.mkfifo(run_dir / "pipe", 0o600)
    with pytest.raises(UsageError, match=r"pipe: it is not a plain file"):
        read_token(run_dir / "pipe")


def test_a_run_folder_with_links_for_its_parts_is_refused(victim: Path, run_dir: Path) -> None:
    (run_dir / "workers").symlink_to(run_dir.parent / "nowhere")
    with pytest.raises(UsageError, match="already holds a run"):
        make_run_dir(run_dir / "train.py", name=None, run_dir=run_dir)


def test_what_earlier_runs_left_is_not_moved_through_a_link(run_dir: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run_dir / "events").mkdir()
    (run_dir / "earlier").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="earlier is a link"):
        make_run_dir(run_dir / "train.py", name=None, run_dir=run_dir, resume=True)
    assert list(elsewhere.iterdir()) == []


def test_a_run_that_resumes_puts_links_aside_as_they_are(victim: Path, run_dir: Path) -> None:
    (run_dir / "events").mkdir()
    (run_dir / JOURNAL_NAME).symlink_to(victim)
    make_run_dir(run_dir / "train.py", name=None, run_dir=run_dir, resume=True)
    assert (run_dir / "earlier" / "1" / JOURNAL_NAME).is_symlink()
    assert not os.path.lexists(run_dir / JOURNAL_NAME)
    assert victim.read_text() == "do not touch this\n"
