# SPDX-License-Identifier: Apache-2.0
"""All members that have the state of the job are lost; only newcomers are left, which have none yet."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import DEADLINE_S
from live_jobs import LiveJob, assert_nothing_lost, report

from gangline.engines import Job, run_job
from gangline.eventlog import read_run
from gangline.observe.ledger import read_ledger
from gangline.spec.cluster import Cluster
from gangline.spec.config import RunConfig, SurvivalConfig
from gangline.spec.event import Decision, Regrouped
from gangline.spec.sync import parse_sync

FOUNDERS, NEWCOMER = [0, 1], 2
NEVER = "the newcomer has the state"


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_a_newcomer_goes_on_from_the_newest_checkpoint_or_says_that_the_state_is_lost(
    tmp_path: Path, has_checkpoints: bool
) -> None:
    folder = str(tmp_path / "checkpoints") if has_checkpoints else None
    setup = Setup(epochs=6, wait={18: NEVER}, checkpoint=folder)
    with LiveJob(tmp_path, setup) as job:
        job.await_reported(17)
        job.join(Setup(epochs=6, checkpoint=folder))
        job.await_decision("; 3 members")
        for worker in FOUNDERS:
            os.kill(job.processes[worker].pid, signal.SIGKILL)
        outcome = job.finish()
    ended = 0 if has_checkpoints else 1
    assert outcome.exit_codes == [-signal.SIGKILL, -signal.SIGKILL, ended], report(outcome)
    if not has_checkpoints:
        assert "LeftBehindError: the state of the job is lost" in outcome.outputs[NEWCOMER]
        return
    assert_nothing_lost(outcome, setup, finishers=[NEWCOMER])
    (resumed,) = [one for one in outcome.of_kind(Decision) if one.what == "resumed"]
    regrouped = [one for one in outcome.of_kind(Regrouped) if one.worker == NEWCOMER]
    assert regrouped[0].step == resumed.numbers["step"]
    written = [one for one in outcome.of_kind(Decision) if one.what == "checkpoint_written"]
    newest = max(one.numbers["step"] for one in written if one.t < resumed.t)
    assert regrouped[0].step == newest


@pytest.mark.slow
def test_who_is_given_the_team_of_one_that_dies_does_not_begin_anew(tmp_path: Path) -> None:
    """It was in a team that was lost, and has a state: that of a time that the others are past."""
    setup = Setup(samples=200, batch=12, epochs=2, wait={2: "test: on", 7: "test: go"})
    with LiveJob(tmp_path, setup, workers=3, sync=parse_sync("local(3)")) as job:
        job.await_reported(1)
        adopted = job.processes[2]
        os.kill(adopted.pid, signal.SIGSTOP)
        job.say("test: on")
        job.await_decision("team 2 is lost")
        os.kill(adopted.pid, signal.SIGCONT)
        job.await_decision("worker 2 joined")
        os.kill(job.processes[0].pid, signal.SIGKILL)
        adopted.join(DEADLINE_S)
        job.say("test: go")
        outcome = job.finish()
    assert outcome.exit_codes == [-signal.SIGKILL, 0, 1], report(outcome)
    assert "LeftBehindError: the state of the job is lost" in outcome.outputs[2]
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)


# Worker 1 kills itself; worker 0 does so when the newcomer that takes its place was let in.
BODY = """\
import os, signal, time
from pathlib import Path
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import gangline
from gangline.eventlog import read_run
from gangline.protocol.launch import Launch

launch = Launch.from_environment(os.environ)
run_dir = Path(launch.run_dir)


def wait_for(text):
    deadline = time.monotonic() + 50
    while not any(text in getattr(event, "reason", "") for event in read_run(run_dir, notes=[])):
        assert time.monotonic() < deadline, f"waited in vain for {text}"
        time.sleep(0.05)


torch.manual_seed(launch.worker)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.arange(192.0).view(48, 4) / 192, torch.ones(48, 1))
gangline.init()
model, optimizer, loader = gangline.prepare(
    model, optimizer, DataLoader(data, batch_size=8), checkpoint=run_dir / "checkpoints", every=2
)
for epoch in gangline.epochs(4):
    for step, (x, y) in enumerate(loader):
        if (epoch, step) == (1, 2) and launch.worker == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if (epoch, step) == (1, 5) and launch.worker == 0:
            wait_for("worker 2 joined")
            os.kill(os.getpid(), signal.SIGKILL)
        if (epoch, step) == (3, 0):
            wait_for("worker 3 joined")
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
print([p.tolist() for p in model.parameters()])
"""


@pytest.mark.slow
def test_workers_that_were_started_again_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BODY)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    survival = SurvivalConfig(respawn=True, max_respawns=2)
    config = RunConfig(run="test", cluster=Cluster.of_speeds((1.0, 1.0)), survival=survival)
    result = run_job(Job(config=config, run_dir=run_dir, script=script))
    logs = [path.read_text() for path in sorted((run_dir / "workers").glob("*.log"))]
    assert result.status == "done", logs
    assert [worker.reason for worker in result.workers] == ["killed by SIGKILL"] * 2 + ["done"] * 2
    events = list(read_run(run_dir, notes=[]))
    read_ledger(events).check(length=48, epochs=4)
    assert any(isinstance(one, Decision) and one.what == "resumed" for one in events)
    assert logs[2] == logs[3]
