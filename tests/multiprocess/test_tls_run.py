# SPDX-License-Identifier: Apache-2.0
"""Whole jobs over TLS, by the commands that a user types."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gangline.cli.main import run_command
from gangline.files.announcement import read_announcement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPT = """\
import gangline
import torch
from torch.utils.data import DataLoader, TensorDataset

gangline.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.arange(96.0).reshape(24, 4) / 96, torch.ones(24, 1))
model, optimizer, loader = gangline.prepare(model, optimizer, DataLoader(data, batch_size=8))
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
print("trained", gangline.world_size())
"""
FAST = ("--transport", "wire-tcp", "--json")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.slow
def test_a_job_trains_over_tls(script: Path) -> None:
    assert run_command(["run", "--nodes", "2", "--tls", "--run-dir", "r", *FAST, str(script)]) == 0
    folder = script.parent / "r"
    assert read_announcement(folder).url.startswith("wss://")
    for worker in (0, 1):
        assert (folder / "workers" / f"{worker}.log").read_text() == "trained 2\n"


@pytest.mark.slow
def test_workers_join_over_tls_by_the_printed_command(script: Path) -> None:
    with coordinator() as said:
        command = shlex.split(said["join"])[1:-1]
        arguments = [*command, "--workers", "2", "--run-dir", "joined", *FAST, str(script)]
        assert run_command(arguments) == 0
    logs = sorted((script.parent / "joined" / "workers").iterdir())
    assert [log.read_text() for log in logs] == ["trained 2\n"] * 2


@contextlib.contextmanager
def coordinator() -> Iterator[Any]:
    """`gangline up --tls`; what it printed."""
    arguments = ["up", "--workers", "2", "--tls", "--run-dir", "up", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gangline.cli.main", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines = ""
        while not lines.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the coordinator ended"
            lines += line
        yield json.loads(lines)
    finally:
        process.kill()
        process.communicate()
