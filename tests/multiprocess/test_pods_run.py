# SPDX-License-Identifier: Apache-2.0
"""What the pods of `gangline k8s` run, as processes of this machine: no cluster is needed for that."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gangline.engines.kubernetes.asked import KubernetesJob
from gangline.engines.kubernetes.manifests import LEFT, STATE, coordinator_command, worker_command
from gangline.engines.kubernetes.secrets import JobSecrets
from gangline.protocol.pods import MOUNT

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
import os, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import gangline

torch.manual_seed(0)
gangline.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=8, shuffle=True)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for epoch in gangline.epochs(60):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.0 if os.path.exists("fast") else 0.5)
"""


def run_as(command: list[str], folder: Path, pod: str) -> subprocess.Popen[bytes]:
    """A pod's command, with its mounts in a folder, and everybody on the loopback interface."""
    changes = {
        MOUNT: str(folder / "secrets"),
        STATE: str(folder / "state"),
        "digits-coordinator-0.digits": "127.0.0.1",
        "0.0.0.0": "127.0.0.1",
        "$(POD_NAME)": pod,
    }
    for before, after in changes.items():
        command = [part.replace(before, after) for part in command]
    with (folder / f"{pod}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "gangline.cli.main", *command[1:]],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def has_trained(folder: Path, pod: str) -> bool:
    logs = (folder / "state" / f"digits-1@{pod}" / "events").glob("worker-*.jsonl")
    return any('"step_done"' in log.read_text() for log in logs)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_pod_that_is_to_end_leaves_and_the_coordinator_ends_with_the_job(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = KubernetesJob(
        name="digits",
        run="digits-1",
        image="x:1",
        program=("train.py",),
        min_nodes=2,
        max_nodes=3,
        port=port,
    )
    (tmp_path / "train.py").write_text(SCRIPT)
    for folder in ("secrets", "state"):
        (tmp_path / folder).mkdir(mode=0o700)
    for name, text in JobSecrets.make("digits", ("127.0.0.1",)).files.items():
        path = tmp_path / "secrets" / name
        path.write_text(text)
        path.chmod(0o400)
    deadline = time.monotonic() + 200
    pods = [run_as(worker_command(job), tmp_path, f"p{number}") for number in range(3)]
    coordinator = run_as(coordinator_command(job), tmp_path, "coordinator")  # workers wait for it
    try:
        while not all(has_trained(tmp_path, f"p{number}") for number in range(3)):
            assert time.monotonic() < deadline, (tmp_path / "p0.log").read_text()
            time.sleep(0.1)
        pods[2].send_signal(signal.SIGTERM)
        assert pods[2].wait(60) == LEFT
        (tmp_path / "fast").touch()
        assert [pod.wait(deadline - time.monotonic()) for pod in pods[:2]] == [0, 0]
        assert coordinator.wait(60) == 0
    finally:
        for process in (*pods, coordinator):
            process.kill()
            process.wait()
