# SPDX-License-Identifier: Apache-2.0
"""Whole jobs on hosts, which are folders of this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fake_hosts import FakeHosts
from gangline.cli.main import run_command
from gangline.eventlog import read_run
from gangline.files.announcement import read_announcement
from gangline.spec.event import StepDone

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

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


def test_hosts_train_over_tls_with_a_script_that_was_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    hosts = FakeHosts(tmp_path, monkeypatch).write("alpha", "beta")
    arguments = ["--hosts", str(hosts), "--bring", "--run-dir", "r", "--transport", "wire-tcp"]
    assert run_command(["run", *arguments, "--json", "train.py"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "done"
    folder = tmp_path / "r"
    assert read_announcement(folder).url.startswith("wss://")
    for worker in (0, 1):
        assert (folder / "workers" / f"{worker}.log").read_text() == "trained 2\n"
    steps = [event for event in read_run(folder) if isinstance(event, StepDone)]
    assert sorted({event.worker for event in steps}) == [0, 1]
