# SPDX-License-Identifier: Apache-2.0
"""A worker runs out of memory: it leaves, and who takes its place is given less."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from gangline.cli.main import run_command
from gangline.engines.result import WorkerResult
from gangline.eventlog import read_run
from gangline.observe.ledger import read_ledger
from gangline.spec.event import Decision, RunEnded, StepDone, ViewAdopted
from gangline.worker.memory import is_out_of_memory, lowered

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline.protocol.launch import Launch

launch = Launch.from_environment(os.environ)
log = Path(launch.run_dir, "events", "coordinator.jsonl")
gangline.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=16)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for epoch in gangline.epochs(4):
    for (x,) in loader:
        if launch.worker > 0 and len(x) > 6:
            raise MemoryError
        while epoch == 2 and b"worker 2 joined" not in log.read_bytes():
            time.sleep(0.02)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_worker_that_ran_out_of_memory_is_back_with_a_lower_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    flags = ["--nodes", "2", "--everybody", "--respawn", "--allocation", "equal"]
    flags += ["--run-dir", "run", "--json"]
    assert run_command(["run", *flags, "train.py"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "done"
    events = list(read_run(tmp_path / "run", notes=[]))
    said = {event.what: event for event in events if isinstance(event, Decision)}
    assert said["out_of_memory"].reason == (
        "worker 1 ran out of memory with a share of 8 samples: it leaves, and who takes its place "
        "gets at most 6"
    )
    assert said["respawn"].reason == "worker 1 ended (MemoryError): worker 2 takes its place"
    views = [e for e in events if isinstance(e, ViewAdopted) and e.members == [0, 2]]
    assert {tuple(view.shares) for view in views} == {(10, 6)}
    steps = {e.step for e in events if isinstance(e, StepDone) and e.worker == 2}
    assert max(steps) == 15, "it takes part to the end"
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    assert ended.reason == "done without worker 1"
    read_ledger(events).check(length=64, epochs=4)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
        (None, False),
    ],
)
def test_lack_of_memory_is_told_from_other_errors(
    error: BaseException | None, expected: bool
) -> None:
    assert is_out_of_memory(error) is expected
    outer = ValueError("in the user's own words")
    outer.__cause__ = error
    assert is_out_of_memory(outer) is expected


def test_the_ceiling_is_lower_than_what_was_too_much() -> None:
    assert [lowered(share) for share in (100, 8, 2, 1)] == [75, 6, 1, 1]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("MemoryError", True),
        ("torch.OutOfMemoryError: CUDA out of memory.", True),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", True),
        ("ValueError: wrong", False),
    ],
)
def test_the_launcher_sees_it_in_the_traceback(line: str, expected: bool) -> None:
    traceback = f"Traceback (most recent call last):\n  File 'train.py', line 1\n{line}\n"
    result = WorkerResult(worker=1, exit_code=1, signal=None, traceback=traceback)
    assert result.ran_out_of_memory is expected
