# SPDX-License-Identifier: Apache-2.0
"""`gangline run` plans by itself, and says what it predicted and what it measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gangline.cli.main import run_command
from gangline.spec.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import torch, gangline
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(40, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(320, 40), torch.randn(320, 10))
gangline.init()
model, optimizer, loader = gangline.prepare(model, optimizer, DataLoader(data, batch_size=8))
for epoch in gangline.epochs(2):
    for x, y in loader:
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
"""


def test_a_run_is_planned_and_stays_in_one_ring_when_all_are_on_one_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT)
    # Its steps are so short that one worker would be left out before the plan is measured.
    flags = ["--nodes", "2", "--everybody", "--run-dir", str(folder)]
    assert run_command(["run", *flags, str(script)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "planned: flat ring, all nodes" in text
    plan = Plan.from_file(folder / "plan.json")
    assert set(plan.nodes) == {"n0", "n1"}
    assert any("nothing says that links differ" in reason for reason in plan.reasons)
    assert run_command(["report", "--json", str(folder)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["plan"]["structure"] == ""
    assert summary["plan"]["measured_s"] > 0


@pytest.mark.slow
def test_a_run_is_not_planned_when_it_shall_be_flat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT)
    flags = ["--nodes", "2", "--structure", "flat", "--run-dir", str(folder)]
    assert run_command(["run", *flags, str(script)]) == 0
    assert "planned:" not in capsys.readouterr().out
    assert not (folder / "plan.json").exists()
