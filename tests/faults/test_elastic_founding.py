# SPDX-License-Identifier: Apache-2.0
"""A worker is killed before the job has begun, or while it joins: the others do not wait for it."""

from __future__ import annotations

import signal
import sys
from itertools import product
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from live_jobs import LiveJob, assert_nothing_lost, report

from cases import quick_of
from gangline.cli.main import run_command
from gangline.eventlog import read_run
from gangline.observe.ledger import read_ledger
from gangline.spec.event import Decision, RunEnded, ViewAdopted


@pytest.mark.parametrize(
    ("where", "victim"),
    quick_of(
        product(["in prepare", "shaking hands", "when ready"], [0, 1]),
        quick=[("when ready", 0)],
    ),
)
def test_the_others_begin_when_a_founder_is_killed(tmp_path: Path, where: str, victim: int) -> None:
    setup = Setup(dies={victim: where})
    with LiveJob(tmp_path, setup, workers=3) as job:
        outcome = job.finish()
    expected = [-signal.SIGKILL if worker == victim else 0 for worker in range(3)]
    assert outcome.exit_codes == expected, report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[w for w in range(3) if w != victim])
    (again,) = [e for e in outcome.of_kind(Decision) if e.what == "gather_again"]
    assert again.reason.startswith(f"worker {victim} is gone")
    assert again.reason.endswith("2 of 3 founders begin")


SCRIPT = """\
import os, signal
from gangline.protocol.launch import Launch

if Launch.from_environment(os.environ).worker == 1:
    os.kill(os.getpid(), signal.SIGKILL)
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import gangline

gangline.init(timeout_s=45)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=8)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for (x,) in loader:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


def test_the_others_begin_when_a_founder_is_killed_before_it_has_said_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    assert run_command(["run", "--nodes", "3", "--run-dir", "run", "--json", "train.py"]) == 0
    events = list(read_run(tmp_path / "run", notes=[]))
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    assert ended.reason == "done without worker 1"
    (view,) = {tuple(e.members) for e in events if isinstance(e, ViewAdopted)}
    assert view == (0, 2)
    read_ledger(events).check(length=40, epochs=1)


def test_one_begins_alone_when_all_other_founders_are_killed(tmp_path: Path) -> None:
    setup = Setup(dies={0: "in prepare", 2: "shaking hands"})
    with LiveJob(tmp_path, setup, workers=3) as job:
        outcome = job.finish()
    assert outcome.exit_codes == [-signal.SIGKILL, 0, -signal.SIGKILL], report(outcome)
    assert_nothing_lost(outcome, setup, finishers=[1])
