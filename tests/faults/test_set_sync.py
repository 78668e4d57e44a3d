# SPDX-License-Identifier: Apache-2.0
"""`gangline set RUN_DIR sync`: a running job's groups are held together in another way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).parent))

from live_jobs import until

from gangline.cli.main import run_command
from gangline.eventlog import read_run
from gangline.observe.ledger import read_ledger
from gangline.spec.event import Regrouped, RoundEnded, StepDone

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

SCRIPT = """\
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline

gangline.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(640, 4)), batch_size=16)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for epoch in gangline.epochs(100_000):
    for (x,) in loader:
        time.sleep(0.005)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    if gangline.mean(float(Path("enough").exists())) > 0:
        break
"""


def events_of(run_dir: Path, kind: type) -> Sequence[object]:
    if not any(run_dir.glob("events/*.jsonl")):
        return []
    return [event for event in read_run(run_dir, notes=[]) if isinstance(event, kind)]


def test_a_running_job_is_switched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run_dir = tmp_path / "run"
    flags = ["--nodes", "2", "--sync", "none", "--run-dir", "run", "--json"]
    command = [sys.executable, "-m", "gangline.cli.main", "run", *flags, "train.py"]
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)

    def switched(mode: str) -> bool:
        rounds = events_of(run_dir, RoundEnded)
        return any(one.sync == mode and not one.is_whole for one in rounds)  # type: ignore[attr-defined]

    def members_of_newest_team() -> list[int]:
        entered = events_of(run_dir, Regrouped)
        newest = max(entered, key=lambda one: one.team)  # type: ignore[attr-defined]
        return list(newest.members)  # type: ignore[attr-defined]

    try:
        until(lambda: events_of(run_dir, StepDone), "the first step")
        assert run_command(["set", str(run_dir), "sync", "percentage(0.5)"]) == 0
        until(lambda: switched("percentage(0.5)"), "rounds in the background")
        assert run_command(["set", str(run_dir), "sync", "full"]) == 0
        until(lambda: len(members_of_newest_team()) == 2, "all in step")
        assert run_command(["set", str(run_dir), "sync", "flexible"]) == 0
        until(lambda: switched("flexible"), "teams again")
        assert run_command(["set", str(run_dir), "sync", "half"]) == 2
        assert run_command(["set", str(run_dir), "shares", "1,2"]) == 2
        (tmp_path / "enough").touch()
        assert job.wait(40) == 0
    finally:
        if job.poll() is None:
            job.terminate()
        job.wait()
    said = capsys.readouterr()
    assert "to hold its groups together by percentage(0.5)" in said.out
    assert "'half' is not known" in said.err
    assert "'shares' cannot be set" in said.err
    ledger = read_ledger(list(read_run(run_dir, notes=[])))
    assert not ledger.problems(length=640, epochs=ledger.num_epochs)
