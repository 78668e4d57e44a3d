# SPDX-License-Identifier: Apache-2.0
"""Whatever is in a file, it is read or refused with an error that names the file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
from checkpoint_jobs import INTRODUCTION
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.coordinator.kept.records import Founded
from gangline.coordinator.server.journal import JOURNAL_NAME, open_journal
from gangline.eventlog import EventWriter, NullWriter, log_path, read_run
from gangline.eventlog.reader import LogNotes, read_events, tail_events
from gangline.files.announcement import read_announcement
from gangline.files.tls import read_tls_files
from gangline.files.tokens import read_token
from gangline.simulation.scenario import Scenario
from gangline.spec.cluster import Cluster
from gangline.spec.errors import GanglineError, LogError, UsageError
from gangline.spec.event import Decision
from gangline.spec.faults import FaultPlan
from gangline.worker.checkpoint.files import CheckpointFolder, Contents, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CLUSTER = b'[[nodes]]\nname = "desk"\nspeed = 0.5\nworkers = 2\n'
FAULTS = b'[[faults]]\nworker = 1\nstep = 12\nwhere = "exchange"\nkind = "kill"\n'
SCENARIO = CLUSTER + b"noise = 0.1\nthrottles = [{ from_step = 1, to_step = 3, factor = 2.0 }]\n"


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    """A sound file that was cut, flipped or spliced; or something else altogether."""
    content = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(["cut", "flip", "insert", "replace"])):
            case "cut":
                del content[place:]
            case "flip" if content:
                content[place] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                content[place:place] = draw(
                    st.binary(max_size=8)
                    | st.sampled_from([b"nan", b"-1", b"1e999", b"inf", b"9" * 30, b"[[", b'"'])
                )
            case _:
                content = bytearray(draw(st.binary(max_size=60)))
    return bytes(content)


@pytest.mark.parametrize(
    ("read", "sound"),
    [
        (Cluster.from_toml, CLUSTER),
        (FaultPlan.from_toml, FAULTS),
        (Scenario.from_toml, SCENARIO),
    ],
    ids=["cluster", "faults", "scenario"],
)
@FUZZ
@given(data=st.data())
def test_toml_is_read_or_refused(
    tmp_path: Path, read: Callable[[Path], object], sound: bytes, data: st.DataObject
) -> None:
    path = tmp_path / "file.toml"
    path.write_bytes(data.draw(damaged(sound)))
    try:
        read(path)
    except UsageError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize("name", ["coordinator.json", "tls.json", "token"])
@FUZZ
@given(content=damaged(b'{"run":"r","url":"ws://127.0.0.1:1","pid":1}'))
def test_small_files_are_read_or_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    path.chmod(0o600)
    readers: dict[str, Callable[[], object]] = {
        "coordinator.json": lambda: read_announcement(tmp_path),
        "tls.json": lambda: read_tls_files(tmp_path),
        "token": lambda: read_token(path),
    }
    try:
        readers[name]()
    except GanglineError as error:
        assert name in str(error)  # noqa: PT017


# --- the journal -------------------------------------------------------------------------------------


def _journal_bytes(folder: Path) -> bytes:
    journal = open_journal(folder, NullWriter())
    for number in range(4):
        journal.append(Founded(founders=tuple(range(number + 1))))
    journal.close()
    return (folder / JOURNAL_NAME).read_bytes()


@FUZZ
@given(data=st.data())
def test_a_damaged_journal_is_cut_at_the_damage(tmp_path: Path, data: st.DataObject) -> None:
    (tmp_path / JOURNAL_NAME).unlink(missing_ok=True)
    sound = _journal_bytes(tmp_path)
    (tmp_path / JOURNAL_NAME).write_bytes(data.draw(damaged(sound)))
    journal = open_journal(tmp_path, NullWriter())
    count = len(journal.records)
    journal.append(Founded(founders=(7,)))
    journal.close()
    again = open_journal(tmp_path, NullWriter())
    assert len(again.records) == count + 1, "what follows the damage is not lost"
    again.close()


# --- event logs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("log")
    path = log_path(folder, "worker 0")
    with EventWriter(path, run="r", source="worker 0") as events:
        for number in range(3):
            events.write(Decision(t=float(number), what="w", reason="r", numbers={"n": 1.0}))
    return path.read_bytes()


@FUZZ
@given(data=st.data(), is_tolerant=st.booleans())
def test_a_damaged_log_is_read_or_refused(
    tmp_path: Path, log: bytes, data: st.DataObject, is_tolerant: bool
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(data.draw(damaged(log)))
    notes = LogNotes(path=str(path)) if is_tolerant else None
    for read in (lambda: list(read_events(path, notes=notes)), lambda: tail_events(path, 0)):
        try:
            read()
        except LogError as error:
            assert str(path) in str(error)  # noqa: PT017


def test_a_log_is_no_link_and_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    secret = tmp_path / "secret"
    secret.write_text("do not show this\n")
    link = tmp_path / "events" / "worker-0.jsonl"
    link.symlink_to(secret)
    with pytest.raises(LogError, match="cannot read the event log") as refused:
        list(read_run(tmp_path))
    assert "do not show" not in str(refused.value)
    link.unlink()
    os.mkfifo(link)
    with pytest.raises(LogError, match="not a plain file"):
        list(read_run(tmp_path))


# --- checkpoints -------------------------------------------------------------------------------------


def _checkpoints(root: Path) -> CheckpointFolder:
    folder = CheckpointFolder(root)
    for step in (1, 2):
        manifest = Manifest(
            run="r", worker=0, step=step, epoch=0, start=0, seed=0, introduction=INTRODUCTION
        )
        tensors = {
            "state.safetensors": {"0": torch.tensor([float(step)])},
            "model.safetensors": {"w": torch.ones(3) * step},
        }
        folder.write(manifest, Contents(b'{"value":1}', tensors))
    return folder


FILES = ("manifest.json", "model.safetensors", "state.json", "state.safetensors")


@FUZZ
@given(data=st.data(), name=st.sampled_from(FILES))
def test_a_damaged_checkpoint_is_never_read(tmp_path: Path, data: st.DataObject, name: str) -> None:
    folder = CheckpointFolder(tmp_path / "kept")
    if not folder.steps():
        _checkpoints(tmp_path / "kept")
    path = folder.path_of(2) / name
    sound = path.read_bytes()
    content = data.draw(damaged(sound))
    try:
        path.write_bytes(content)
        manifest, contents = folder.read(2)
        # A manifest may be written in other words that mean the same; a tensor may not.
        assert name == "manifest.json" or content == sound
        assert float(contents.tensors["model.safetensors"]["w"][0]) == manifest.step == 2
    except LogError as error:
        assert str(folder.path_of(2)) in str(error)  # noqa: PT017
    finally:
        path.write_bytes(sound)


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_with_a_file_of_another_is_refused(tmp_path: Path, name: str) -> None:
    folder = _checkpoints(tmp_path)
    other = (folder.path_of(1) / name).read_bytes()
    (folder.path_of(2) / name).write_bytes(other)
    if name == "state.json":
        assert folder.read(2)[1].document == other, "both are the same"
        return
    with pytest.raises(LogError, match=name if name != "manifest.json" else "that of step 1"):
        folder.read(2)


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_has_no_links_and_no_pipes(tmp_path: Path, name: str) -> None:
    folder = _checkpoints(tmp_path)
    path = folder.path_of(2) / name
    path.unlink()
    path.symlink_to(folder.path_of(1) / name)
    with pytest.raises(LogError, match="cannot be read"):
        folder.read(2)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(LogError, match="not a plain file"):
        folder.read(2)
