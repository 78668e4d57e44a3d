# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: what is written, what is kept, what is not followed, and who agrees."""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from checkpoint_jobs import INTRODUCTION
from torch import nn

from gangline.coordinator.hub import Hub
from gangline.coordinator.settings import Settings
from gangline.eventlog import NullWriter
from gangline.protocol.messages import (
    PROTOCOL_VERSION,
    CheckpointAnswered,
    CheckpointWritten,
    Failed,
    Hello,
    Ready,
)
from gangline.spec.errors import LogError
from gangline.spec.event import Decision, Event
from gangline.spec.exchange.address import WireAddress
from gangline.spec.position import Position
from gangline.worker.checkpoint import files as checkpoint_files
from gangline.worker.checkpoint import writer as checkpoint
from gangline.worker.checkpoint.files import CheckpointFolder, Contents, FileSum, Manifest
from gangline.worker.checkpoint.state import RandomNumbers, capture, restore
from gangline.worker.checkpoint.writer import Checkpointer, CheckpointOptions
from gangline.worker.groups.snapshot import Snapshot
from gangline.worker.prepare.prepared import Prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


def manifest(step: int, **changes: Any) -> Manifest:
    fields = {"run": "r", "worker": 0, "epoch": 0, "start": 4 * step, "seed": 7}
    return Manifest(step=step, introduction=INTRODUCTION, **{**fields, **changes})


def contents(value: float = 1.0) -> Contents:
    tensors = {"state.safetensors": {"0": torch.tensor([value])}}
    return Contents(b'{"value":1}', {**tensors, "model.safetensors": {"w": torch.ones(3) * value}})


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "kept")


def write(folder: CheckpointFolder, *steps: int) -> None:
    for step in steps:
        folder.write(manifest(step), contents(step))
        folder.move_latest(step)


def test_what_was_written_is_read(folder: CheckpointFolder) -> None:
    write(folder, 3)
    found, read = folder.read(3)
    assert found.introduction == INTRODUCTION
    assert (found.step, found.start, found.seed) == (3, 12, 7)
    assert read.document == b'{"value":1}'
    assert torch.equal(read.tensors["model.safetensors"]["w"], torch.ones(3) * 3)


def test_the_manifest_is_text_for_people(folder: CheckpointFolder) -> None:
    write(folder, 3)
    text = (folder.path_of(3) / "manifest.json").read_text()
    assert json.loads(text)["step"] == 3
    assert len(text.splitlines()) > 20


def test_only_the_newest_are_kept(folder: CheckpointFolder) -> None:
    write(folder, 2, 4, 6, 8)
    folder.prune(8, keep=2)
    assert folder.steps() == [8, 6]


def test_what_nobody_agreed_on_does_not_push_out_what_is_agreed(folder: CheckpointFolder) -> None:
    write(folder, 2, 4)
    for step in (6, 8, 10):
        folder.write(manifest(step), contents())
        folder.prune(step, keep=2)
    assert folder.steps() == [10, 8, 4, 2]
    assert folder.agreed_steps() == [4, 2]


def test_an_abandoned_branch_is_removed_when_the_job_goes_on_from_before_it(
    folder: CheckpointFolder,
) -> None:
    write(folder, 2, 4, 6)
    folder.move_latest(2)
    write(folder, 3)
    folder.prune(3, keep=3)
    assert folder.steps() == [3, 2]


def test_a_checkpoint_is_replaced_as_a_whole(folder: CheckpointFolder) -> None:
    write(folder, 2)
    folder.write(manifest(2), contents(9.0))
    assert folder.read(2)[1].tensors["model.safetensors"]["w"][0] == 9


def test_what_a_killed_writer_left_is_removed_by_the_next(folder: CheckpointFolder) -> None:
    write(folder, 2)
    (folder.root / ".writing-step-000000004-1").mkdir()
    (folder.root / ".writing-step-000000004-1" / "model.safetensors").write_text("half")
    write(folder, 4)
    assert sorted(p.name for p in folder.root.iterdir()) == [
        "latest",
        "step-000000002",
        "step-000000004",
    ]


@pytest.mark.parametrize(
    "text", ["", "step-4", "../step-000000004", "step-000000004/..", "\x00\xff"]
)
def test_a_marker_that_names_no_checkpoint_is_ignored(text: str, folder: CheckpointFolder) -> None:
    write(folder, 2, 4)
    (folder.root / "latest").write_text(text, encoding="latin-1")
    assert folder.latest() is None
    assert folder.agreed_steps() == [4, 2]


def test_no_link_is_followed(folder: CheckpointFolder, tmp_path: Path) -> None:
    write(folder, 2)
    outside = folder.path_of(2).rename(tmp_path / "outside")
    folder.path_of(2).symlink_to(outside)
    with pytest.raises(LogError, match="step-000000002 is not a folder of its own"):
        folder.read(2)
    folder.prune(4, keep=1)
    folder.remove(2)
    assert (outside / "manifest.json").exists(), "what a link leads to is left alone"
    write(folder, 4)
    model = folder.path_of(4) / "model.safetensors"
    model.unlink()
    model.symlink_to(outside / "model.safetensors")
    with pytest.raises(LogError, match=r"model\.safetensors cannot be read: it is a link"):
        folder.read(4)
    (folder.root / "latest").unlink()
    (folder.root / "latest").symlink_to(outside / "manifest.json")
    assert folder.latest() is None


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b", "..", ".x", ""])
def test_a_manifest_cannot_name_files_elsewhere(name: str, folder: CheckpointFolder) -> None:
    write(folder, 2)
    forged = manifest(2).sealed({name: FileSum(sha256="0", num_bytes=0)})
    (folder.path_of(2) / "manifest.json").write_bytes(msgspec.json.encode(forged))
    with pytest.raises(LogError, match="which would lie outside of its folder"):
        folder.read(2)


def test_another_format_is_refused(folder: CheckpointFolder) -> None:
    write(folder, 2)
    newer = manifest(2, format=checkpoint_files.FORMAT + 1).sealed({})
    (folder.path_of(2) / "manifest.json").write_bytes(msgspec.json.encode(newer))
    with pytest.raises(LogError, match=r"has format 3; this gangline reads 2"):
        folder.read(2)


def test_an_unreadable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        LogError, match=r"cannot read the checkpoint folder .*file: Not a directory"
    ):
        CheckpointFolder(tmp_path / "file").steps()


# --- the state ---------------------------------------------------------------------------------------


class Odd:
    """Something with a state of many kinds."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_a_state_of_any_kind_survives(folder: CheckpointFolder) -> None:
    state = {
        "best": math.inf,
        "worst": -math.inf,
        "raw": b"\x00\xff",
        "value": {"value": 1, ("order", 3): None},
        "many": OrderedDict([(1, (2, 3.5)), ("x", [True, "float"])]),
        "big": 2**63,
        "tensor": torch.arange(6).view(2, 3).t(),
        "flag": torch.tensor(True),
    }
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    optimizer = torch.optim.SGD(tied.parameters(), lr=0.5)
    prepared = Prepared(
        models=[tied, nn.BatchNorm1d(2)], optimizers=[optimizer], stateful=[Odd(state)]
    )
    orders = {("order", 1): torch.arange(3), (0, 0): 5.0}
    folder.write(manifest(1), capture(prepared, Snapshot(prepared), orders))
    assert {"model-0.safetensors", "model-1.safetensors"} <= set(folder.read(1)[0].files)
    other = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    other[1].weight = other[0].weight
    changed = torch.optim.SGD(other.parameters(), lr=0.1)
    fresh = Prepared(models=[other, nn.BatchNorm1d(2)], optimizers=[changed], stateful=[Odd({})])
    rest = restore(fresh, Snapshot(fresh), folder.read(1)[1])
    found = fresh.stateful[0].state
    assert torch.equal(found.pop("tensor"), state.pop("tensor"))
    assert found.pop("flag").item() is state.pop("flag").item()
    assert found == state
    assert type(found["many"]) is OrderedDict
    assert torch.equal(other[0].weight, tied[0].weight)
    assert changed.param_groups[0]["lr"] == 0.5
    assert list(rest["orders"]) == [("order", 1)], "results of single calls are not kept"


def test_a_copy_does_not_follow_the_training() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    prepared = Prepared(models=[model], optimizers=[optimizer], stateful=[])
    taken = capture(prepared, Snapshot(prepared), {})
    before = model.weight.detach().clone()
    nn.init.zeros_(model.weight)
    assert torch.equal(taken.tensors["model.safetensors"]["weight"], before)


def test_a_strange_state_is_refused_with_a_reason() -> None:
    model = nn.Linear(2, 1)
    prepared = Prepared(models=[model], optimizers=[], stateful=[])
    good = capture(prepared, Snapshot(prepared), {})
    for document in (b"{}", b"[]", b'{"dict":[]}', b"nonsense"):
        with pytest.raises(LogError, match="a state is not what this gangline writes"):
            restore(prepared, Snapshot(prepared), Contents(document, good.tensors))


def test_random_numbers_go_on_once() -> None:
    before = torch.get_rng_state()
    numbers = RandomNumbers({"cpu": before})
    first = torch.rand(3)
    numbers.go_on()
    assert torch.equal(torch.rand(3), first)
    numbers.go_on()
    assert not torch.equal(torch.rand(3), first)
    torch.set_rng_state(before)


# --- the coordinator's agreement ---------------------------------------------------------------------


class Told(NullWriter):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.whats: list[str] = []

    def write(self, event: Event) -> None:
        assert isinstance(event, Decision)
        self.whats.append(event.what)


def keep_two(folder: CheckpointFolder, answers: dict[int, CheckpointAnswered | None]) -> list[str]:
    """Keeps steps 2 and 4 with a coordinator that answers so; what was said of them."""
    return keep(folder, lambda written, timeout_s: answers[written.step], steps=range(1, 6))


def keep(
    folder: CheckpointFolder,
    ask: Callable[[CheckpointWritten, float], CheckpointAnswered | None],
    *,
    steps: Iterable[int],
    asked: tuple[int, ...] = (),
) -> list[str]:
    """Goes through steps, every second of which is kept, and those asked for; what was said of them."""
    model = nn.Linear(2, 1)
    prepared = Prepared(models=[model], optimizers=[], stateful=[])
    told = Told()
    client = SimpleNamespace(ask=ask)
    session: Any = SimpleNamespace(
        client=client,
        record=told.write,
        group=SimpleNamespace(rank=0),
        place=SimpleNamespace(run="r", worker=0),
    )
    checkpointer = Checkpointer(
        CheckpointOptions(folder=folder.root, every=2, keep=3),
        session=session,
        prepared=prepared,
        introduction=INTRODUCTION,
        seed=7,
        first_step=0,
    )
    membership: Any = SimpleNamespace(results={}, group=0)
    for step in steps:
        position = Position.at_start()._replace(step=step)
        is_asked = step in asked
        assert checkpointer.offer(position, Snapshot(prepared), membership, is_asked=is_asked)
        checkpointer.close()
    return told.whats


def reply(step: int, *, is_agreed: bool) -> CheckpointAnswered:
    return CheckpointAnswered(step=step, is_agreed=is_agreed, reason="so it is")


def test_one_that_was_asked_for_is_kept_though_none_is_due(folder: CheckpointFolder) -> None:
    keep(folder, lambda written, _: reply(written.step, is_agreed=True), steps=[1, 1], asked=(1,))
    assert (folder.steps(), folder.latest()) == ([1], 1)


def test_the_marker_moves_when_the_coordinator_agrees(folder: CheckpointFolder) -> None:
    told = keep_two(folder, {step: reply(step, is_agreed=True) for step in (2, 4)})
    assert told == ["checkpoint_written"] * 2
    assert (folder.steps(), folder.latest()) == ([4, 2], 4)


def test_the_marker_stays_when_the_coordinator_is_away(folder: CheckpointFolder) -> None:
    told = keep_two(folder, {2: reply(2, is_agreed=True), 4: None})
    assert told == ["checkpoint_written", "checkpoint_unconfirmed", "checkpoint_written"]
    assert (folder.steps(), folder.latest()) == ([4, 2], 2)
    assert folder.agreed_steps() == [2]


def test_a_checkpoint_is_removed_when_the_coordinator_refuses_it(folder: CheckpointFolder) -> None:
    told = keep_two(folder, {2: reply(2, is_agreed=True), 4: reply(4, is_agreed=False)})
    assert told == ["checkpoint_written", "checkpoint_refused"]
    assert (folder.steps(), folder.latest()) == ([2], 2)


def test_a_checkpoint_that_is_not_written_when_the_script_ends_is_named(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint, "_CLOSE_WAIT_S", 0.2)
    is_well = threading.Event()

    def hang(written: CheckpointWritten, timeout_s: float) -> CheckpointAnswered:
        assert is_well.wait(20.0)
        return reply(written.step, is_agreed=True)

    try:
        assert keep(folder, hang, steps=[2]) == ["checkpoint_failed"]
        assert "the checkpoint of step 2 is missing" in caplog.text
    finally:
        is_well.set()


def test_what_another_worker_kept_is_not_overwritten_by_one_that_lags(
    folder: CheckpointFolder,
) -> None:
    write(folder, 4)
    assert keep_two(folder, {}) == ["checkpoint_refused"] * 2
    assert folder.steps() == [4]
    assert folder.read(4)[1].document == contents().document


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def start_hub(workers: int) -> tuple[Hub, Clock]:
    clock = Clock()
    hub = Hub(Settings(run="r", expected_workers=workers), events=NullWriter(), clock=clock)
    for worker in range(workers):
        hub.connect(
            Hello(
                protocol=PROTOCOL_VERSION,
                run="r",
                worker=worker,
                host="h",
                pid=worker,
                address=WireAddress(host="127.0.0.1", port=1),
            )
        )
    ready = Ready(
        global_batch=8, minimum=1, allocation="equal", shares=None, max_samples=None, seed=1
    )
    for worker in range(workers):
        hub.receive(worker, ready)
    return hub, clock


def answer(hub: Hub, worker: int, *, group: int) -> CheckpointAnswered:
    (outgoing,) = hub.receive(worker, CheckpointWritten(step=4, group=group))
    assert outgoing.worker == worker
    assert isinstance(outgoing.message, CheckpointAnswered)
    return outgoing.message


def lose(hub: Hub, clock: Clock, worker: int, *, survivors: tuple[int, ...]) -> None:
    hub.disconnect(worker)
    for survivor in survivors:
        hub.receive(survivor, Failed(group=0, step=4, error="gone"))
    clock.now += 60
    hub.tick()


def test_the_coordinator_agrees_with_who_has_been_there_all_the_time() -> None:
    hub, clock = start_hub(3)
    assert answer(hub, 0, group=0).is_agreed
    lose(hub, clock, 2, survivors=(0, 1))
    assert answer(hub, 0, group=0).is_agreed, (
        "what it took before the loss is still the job's state"
    )


def test_the_coordinator_refuses_who_was_put_out() -> None:
    hub, clock = start_hub(3)
    lose(hub, clock, 0, survivors=(1, 2))
    refused = answer(hub, 0, group=0)
    assert not refused.is_agreed
    assert "went on without worker 0" in refused.reason
