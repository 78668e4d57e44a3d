# SPDX-License-Identifier: Apache-2.0
"""`gangline run` starts again what was killed: workers, and its coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.engines import Job, run_job
from gangline.eventlog import read_run
from gangline.observe.ledger import read_ledger
from gangline.spec.cluster import Cluster
from gangline.spec.config import RunConfig, SurvivalConfig
from gangline.spec.event import Decision, RunEnded

if TYPE_CHECKING:
    from pathlib import Path

# Worker 1 kills itself, and the coordinator with it; the other one waits for the replacement.
TWO = Cluster.of_speeds((1.0, 1.0))
BODY = """\
import os, signal, sys, time
from pathlib import Path
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import gangline
from gangline.eventlog import read_run
from gangline.files.announcement import read_announcement
from gangline.protocol.launch import Launch

launch = Launch.from_environment(os.environ)
run_dir = Path(launch.run_dir)


def wait_for(text):
    deadline = time.monotonic() + 40
    while not any(text in getattr(event, "reason", "") for event in read_run(run_dir, notes=[])):
        assert time.monotonic() < deadline, f"waited in vain for {text}"
        time.sleep(0.05)


torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
gangline.init()
model, optimizer, loader = gangline.prepare(model, optimizer, DataLoader(data, batch_size=8))
for epoch in gangline.epochs(4):
    for step, (x, y) in enumerate(loader):
        if (epoch, step) == (1, 2) and launch.worker == 1:
            os.kill(read_announcement(run_dir).pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if (epoch, step) == (2, 0):
            wait_for("worker 2 joined")
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
print(gangline.world_size(), [p.tolist() for p in model.parameters()])
"""


def test_a_killed_worker_and_a_killed_coordinator_are_started_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BODY)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    survival = SurvivalConfig(respawn=True, max_respawns=1)
    config = RunConfig(run="test", cluster=TWO, survival=survival)
    job = Job(config=config, run_dir=run_dir, script=script)
    result = run_job(job)
    logs = [path.read_text() for path in sorted((run_dir / "workers").glob("*.log"))]
    assert result.status == "done", logs
    assert [worker.reason for worker in result.workers] == ["done", "killed by SIGKILL", "done"]
    events = list(read_run(run_dir, notes=[]))
    decisions = {event.what: event.reason for event in events if isinstance(event, Decision)}
    assert decisions["respawn"] == "worker 1 ended (killed by SIGKILL): worker 2 takes its place"
    assert "killed by SIGKILL" in decisions["restart_coordinator"]
    assert "the coordinator was started again" in decisions["resume"]
    read_ledger(events).check(length=48, epochs=4)
    assert logs[0] == logs[2]
    assert logs[0].startswith("2 ")


def test_the_others_go_on_after_an_error_when_told_to(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os\n"
        "if json.loads(os.environ['GANGLINE_LAUNCH'])['worker'] == 1: raise ValueError('boom')\n"
        "print('went on')\n"
    )
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    config = RunConfig(run="test", cluster=TWO, survival=SurvivalConfig(keep_going=True))
    job = Job(config=config, run_dir=run_dir, script=script)
    result = run_job(job)
    assert result.status == "done"
    (ended,) = [event for event in read_run(run_dir) if isinstance(event, RunEnded)]
    assert ended.reason == "done without worker 1"
