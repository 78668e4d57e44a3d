# SPDX-License-Identifier: Apache-2.0
"""Damaged, half written or impossible checkpoints: the last good one is used, training goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import gangline
from gangline.eventlog import read_run
from gangline.spec.errors import LogError
from gangline.spec.event import Decision
from gangline.testing import WorkerError
from gangline.worker import api
from gangline.worker.checkpoint import files as checkpoint_files
from gangline.worker.checkpoint.files import CheckpointFolder, Contents

sys.path.append(str(Path(__file__).parents[1] / "unit"))

from checkpoint_jobs import Outcome, Run, checkpoints, train, train_until_killed
from runtime_jobs import LAUNCHERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gangline.testing import WorkerPool

FILES = ("model.safetensors", "state.safetensors", "state.json", "manifest.json")


@pytest.fixture(autouse=True)
def nobody_launched_us(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_rng_state()
    yield
    api.shutdown()
    torch.set_rng_state(before)


@pytest.fixture
def kept(tmp_path: Path) -> Run:
    """A run that was interrupted after its fourth step, with checkpoints of steps 2 and 4."""
    run = Run(folder=tmp_path / "kept", every=2, epochs=2)
    train(replace(run, stop_after=4))
    return run


def folder_of(run: Run) -> CheckpointFolder:
    assert run.folder is not None
    return CheckpointFolder(run.folder)


# --- damage ------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    place = content.index(b'"epoch": ') + 9 if path.name == "manifest.json" else len(content) // 2
    content[place] ^= 1
    path.write_bytes(content)


def swap(path: Path) -> None:
    """The file of an older checkpoint."""
    shutil.copy(path.parent.with_name("step-000000002") / path.name, path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [truncate, flip_a_bit, swap, Path.unlink])
def test_damage_is_found_and_the_file_named(
    damage: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    run = Run(folder=tmp_path, every=2)
    train(replace(run, stop_after=6))
    folder = folder_of(run)
    damage(folder.path_of(6) / name)
    with pytest.raises(LogError, match=rf"step-000000006/{name}"):
        folder.read(6)
    folder.read(2)


def test_the_one_before_is_used_when_the_newest_is_damaged(kept: Run, tmp_path: Path) -> None:
    whole = train(replace(kept, folder=None))
    truncate(folder_of(kept).path_of(4) / "model.safetensors")
    gangline.init(run_dir=str(tmp_path / "run"))
    assert_same(train(replace(kept, resume=True)), whole)
    damaged, resumed, *_ = decisions(tmp_path / "run")
    assert damaged.what == "checkpoint_damaged"
    assert "step-000000004/model.safetensors has" in damaged.reason
    assert resumed.what == "resumed"
    assert resumed.numbers["step"] == 2
    assert folder_of(kept).read(4), "the damaged one was replaced"


# --- a writer that is killed -------------------------------------------------------------------------


def write_and_die(folder: CheckpointFolder, contents: Contents, *, at: int) -> None:
    """In a child process: writes step 4 and is killed before the given call that touches the disk."""
    calls = iter(range(at))
    manifest = folder.read(2)[0]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return call

    os.fsync = counted(os.fsync)  # type: ignore[assignment]
    Path.rename = counted(Path.rename)  # type: ignore[method-assign]
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    checkpoint_files.save_file = counted(checkpoint_files.save_file)  # type: ignore[attr-defined]
    folder.write(checkpoint_files.msgspec.structs.replace(manifest, step=4), contents)
    folder.move_latest(4)
    folder.prune(4, keep=1)


def test_a_good_one_is_always_there_when_the_writer_is_killed(tmp_path: Path) -> None:
    run = Run(folder=tmp_path / "first", every=2)
    train(replace(run, stop_after=2))
    contents = folder_of(run).read(2)[1]
    outcomes = []
    for at in range(100):
        folder = CheckpointFolder(tmp_path / str(at))
        shutil.copytree(tmp_path / "first", folder.root)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                write_and_die(folder, contents, at=at)
                os._exit(0)
            os._exit(1)
        status = os.waitpid(child, 0)[1]
        newest, *_ = folder.agreed_steps()
        folder.read(newest)
        outcomes.append(newest)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert len(outcomes) > 10, "it was killed at every stage"
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {2, 4}


def test_another_worker_goes_on_writing_when_the_first_is_killed(
    worker_pool: WorkerPool, tmp_path: Path
) -> None:
    run = Run(
        folder=tmp_path / "kept", every=1, batch=8, samples=32, order="shuffled by a generator"
    )
    whole = train(replace(run, folder=None))
    with pytest.raises(WorkerError) as caught:
        worker_pool.run(train_until_killed, 2, args=(replace(run, epochs=2), 0, 4))
    assert list(caught.value.failures) == [0], "the other went on"
    kept = folder_of(run)
    assert kept.latest() == 8, "the last step of the second epoch"
    assert_same(train(replace(run, resume=True)), whole)


# --- a disk that refuses -----------------------------------------------------------------------------


def decisions(run_dir: Path) -> list[Decision]:
    return [event for event in read_run(run_dir) if isinstance(event, Decision)]


def assert_same(one: Outcome, other: Outcome) -> None:
    for name, value in one.state.items():
        if name == "count":  # counts forward passes, also those that were lost
            continue
        torch.testing.assert_close(value, other.state[name], rtol=0, atol=1e-9)


def train_logged(
    run: Run, tmp_path: Path, on_batch: Callable[[int], None] = lambda count: None
) -> list[Decision]:
    """Trains to the end, with the same result as without checkpoints; what was said meanwhile."""
    whole = train(replace(run, folder=None))
    gangline.init(run_dir=str(tmp_path / "run"))
    assert_same(train(run, on_batch), whole)
    return decisions(tmp_path / "run")


def test_training_goes_on_when_the_folder_cannot_be_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    run = Run(folder=tmp_path / "file" / "kept", every=4, epochs=2)
    failed = train_logged(run, tmp_path)
    assert [event.what for event in failed] == ["checkpoint_failed"] * 2
    assert [event.numbers["step"] for event in failed] == [4, 8]
    assert "the checkpoint of step 4 is missing from" in failed[0].reason
    assert "Not a directory" in failed[0].reason
    assert "training goes on" in caplog.text, "it is said without an event log too"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unwritable to root")
def test_training_goes_on_when_the_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir(mode=0o500)
    failed = train_logged(Run(folder=tmp_path / "kept", every=4, epochs=2), tmp_path)
    assert [event.what for event in failed] == ["checkpoint_failed"] * 2
    assert "Permission denied" in failed[0].reason


def test_training_goes_on_when_the_folder_vanishes(tmp_path: Path) -> None:
    folder = tmp_path / "kept"

    def remove(count: int) -> None:
        if count == 4:
            shutil.rmtree(folder)

    said = train_logged(Run(folder=folder, every=2, epochs=2), tmp_path, remove)
    assert [event.what for event in said] == ["checkpoint_written"] * 4
    assert checkpoints(folder) == ["step-000000004", "step-000000006", "step-000000008"]


def test_the_log_says_what_is_missing_when_the_disk_is_full(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(count: int) -> None:
        soft = 100_000 if 3 <= count <= 6 else limits[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, limits[1]))

    run = Run(folder=folder, every=2, epochs=2, width=5000)
    try:
        said = train_logged(run, tmp_path, fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(event.what, event.numbers["step"]) for event in said] == [
        ("checkpoint_written", 2),
        ("checkpoint_failed", 4),
        ("checkpoint_failed", 6),
        ("checkpoint_written", 8),
    ]
    assert "File too large" in said[1].reason
    assert checkpoints(folder) == ["step-000000002", "step-000000008"]
    assert {path.name for path in folder.iterdir()} == {*checkpoints(folder), "latest"}


def test_training_goes_on_when_a_state_cannot_be_kept(tmp_path: Path) -> None:
    run = Run(folder=tmp_path / "kept", every=4, epochs=1)
    gangline.init(run_dir=str(tmp_path / "run"))

    def spoil(count: int) -> None:
        training = api._job.training
        assert training is not None
        training.prepared.optimizers[0].param_groups[0]["mine"] = object()

    train(run, spoil)
    (failed,) = decisions(tmp_path / "run")
    assert failed.what == "checkpoint_failed"
    assert "['mine'] is a builtins.object" in failed.reason
