# SPDX-License-Identifier: Apache-2.0
"""`gangline run --faults`: a plan from a file is carried out, and the run ends well."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gangline.cli.main import run_command
from gangline.eventlog import read_run
from gangline.observe.ledger import read_ledger
from gangline.spec.event import FaultFired, RunEnded

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline

gangline.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=8, shuffle=True)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for epoch in gangline.epochs(3):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""

PLAN = """\
[[faults]]
worker = 1
step = 7
where = "exchange"
kind = "kill"
"""


def test_a_run_ends_well_when_its_plan_kills_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "plan.toml").write_text(PLAN)
    flags = ["--everybody", "--nodes", "3", "--faults", "plan.toml", "--run-dir", "run", "--json"]
    assert run_command(["run", *flags, "train.py"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "done"
    events = list(read_run(tmp_path / "run", notes=[]))
    (fired,) = [event for event in events if isinstance(event, FaultFired)]
    assert (fired.worker, fired.step, fired.fault, fired.where) == (1, 7, "kill", "exchange")
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    assert ended.reason == "done without worker 1"
    read_ledger(events).check(length=40, epochs=3)
