# SPDX-License-Identifier: Apache-2.0
"""`gangline chaos` on a live job: workers are killed and stopped, and the job ends as it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).parent))

from live_jobs import until

from gangline.cli.live import cmd_chaos
from gangline.cli.live.cmd_chaos import Victim, spare_the_last
from gangline.cli.main import run_command
from gangline.eventlog import read_run
from gangline.observe.ledger import read_ledger
from gangline.spec.event import Decision, Regrouped, StepDone

SCRIPT = """\
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline

gangline.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=16)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for epoch in gangline.epochs(100_000):
    for (x,) in loader:
        time.sleep(0.02)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    if gangline.mean(float(Path("enough").exists())) > 0:
        break
"""


def decisions(run_dir: Path, text: str) -> list[Decision]:
    events = read_run(run_dir, notes=[]) if any(run_dir.glob("events/*.jsonl")) else ()
    return [e for e in events if isinstance(e, Decision) and text in e.reason]


def has_stepped(run_dir: Path, worker: int) -> bool:
    events = read_run(run_dir, notes=[])
    return any(isinstance(e, StepDone) and e.worker == worker for e in events)


def test_a_live_job_survives_chaos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run_dir = tmp_path / "run"
    flags = ["--everybody", "--nodes", "3", "--respawn", "--run-dir", "run", "--json"]
    command = [sys.executable, "-m", "gangline.cli.main", "run", *flags, "train.py"]
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        until(lambda: decisions(run_dir, "3 workers joined"), "the job")
        until(lambda: all(has_stepped(run_dir, one) for one in range(3)), "a step of each")
        monkeypatch.setattr(cmd_chaos, "_HANG_S", 0.2)
        for kind in ("kill", "hang"):
            once = ["--every", "100ms", "--for", "150ms", "--kinds", kind, "--seed", "7"]
            assert run_command(["chaos", str(run_dir), *once]) == 0
        until(lambda: has_stepped(run_dir, 3), "the one that was started again")
        (tmp_path / "enough").touch()
        assert job.wait(30) == 0
    finally:
        if job.poll() is None:
            job.terminate()
        job.wait()
    killed, stopped = capsys.readouterr().out.splitlines()
    assert killed.startswith("kills worker ")
    assert stopped.startswith("stops worker ")
    assert stopped.endswith("for 0.2 s")
    events = list(read_run(run_dir, notes=[]))
    ledger = read_ledger(events)
    assert ledger.contradictions == ()
    assert not ledger.problems(length=64, epochs=ledger.num_epochs)
    assert any(isinstance(e, Regrouped) and 3 in e.members for e in events)
    assert any(isinstance(e, StepDone) and e.worker == 3 for e in events)


def member(worker: int, *, step: int = 7, is_member: bool = True) -> Victim:
    return Victim(worker=worker, pid=worker, is_connected=True, step=step, is_member=is_member)


def newcomer(worker: int, *, is_member: bool) -> Victim:
    """It was let in, perhaps, but has not made a step yet."""
    return member(worker, step=-1, is_member=is_member)


@pytest.mark.parametrize(
    ("victims", "eligible"),
    [
        ([member(0), member(1)], {0, 1}),
        ([member(0), member(1), newcomer(2, is_member=True)], {0, 1, 2}),
        ([member(0), newcomer(1, is_member=True), newcomer(2, is_member=False)], {1, 2}),
        ([member(0), member(1, is_member=False)], {1}),
        ([member(0)], set()),
        ([newcomer(0, is_member=True), newcomer(1, is_member=True)], set()),
        ([], set()),
    ],
)
def test_the_last_member_that_has_the_state_of_the_job_is_spared(
    victims: list[Victim], eligible: set[int]
) -> None:
    assert {one.worker for one in spare_the_last(victims)} == eligible


class Torment:
    """`gangline chaos` on a clock of its own: what it did, and when it was asked for victims."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, answer_s: float) -> None:
        self.picked: list[tuple[int, str]] = []
        self._answer_s = answer_s
        self._now_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: self._now_s, sleep=self._sleep)
        monkeypatch.setattr(cmd_chaos, "time", clock)
        monkeypatch.setattr(cmd_chaos, "find_victims", self._find)
        monkeypatch.setattr(cmd_chaos, "torment", self._torment)

    def _sleep(self, seconds: float) -> None:
        self._now_s += seconds

    def _find(self, folder: Path) -> list[Victim]:
        self._sleep(self._answer_s)
        return [member(worker) for worker in range(4)]

    def _torment(self, victim: Victim, kind: str) -> None:
        self.picked.append((victim.worker, kind))


def test_the_same_seed_picks_the_same_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torment = Torment(monkeypatch, answer_s=0.0)
    runs = []
    for seed in ("3", "3", "4"):
        torment.picked.clear()
        flags = ["--every", "1s", "--for", "20s", "--seed", seed]
        assert run_command(["chaos", str(tmp_path), *flags]) == 0
        runs.append(list(torment.picked))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert len(runs[0]) == 20
    assert {kind for _, kind in runs[0]} == {"kill", "hang"}


def test_the_time_runs_from_the_first_answer_when_the_coordinator_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torment = Torment(monkeypatch, answer_s=30.0)
    assert run_command(["chaos", str(tmp_path), "--every", "1s", "--for", "2s"]) == 0
    assert len(torment.picked) == 1
