# SPDX-License-Identifier: Apache-2.0
"""Two machines with a network between them, by the commands that people type on them."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from networks import COORDINATOR, Network

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPT = """\
import pathlib, sys, time

import gangline
import torch
from torch.utils.data import DataLoader, TensorDataset

gangline.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.arange(96.0).reshape(24, 4) / 96, torch.ones(24, 1))
model, optimizer, loader = gangline.prepare(model, optimizer, DataLoader(data, batch_size=8))
deadline = time.monotonic() + 60
for _ in gangline.epochs(1000):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    time.sleep(0.02)
    if gangline.any(gangline.world_size() == 2 or time.monotonic() > deadline):
        break
print("trained", gangline.world_size(), *sys.argv[1:])
"""


@contextlib.contextmanager
def command(namespace: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`gangline` on one of the machines, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-m", "gangline.cli.main", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def pasted(process: subprocess.Popen[str]) -> list[str]:
    """The first line to paste that a machine printed, as the other one's shell takes it apart."""
    assert process.stdout is not None
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        line = process.stdout.readline()
        if line.strip().startswith("gangline join"):
            return shlex.split(line)[1:]
    raise AssertionError("no line to paste was printed")


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(2) as made:
        yield made


def test_one_command_each_makes_two_machines_one_job(network: Network, tmp_path: Path) -> None:
    """The second machine has nothing but the line: the code comes with it."""
    here, there = network.workers
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / "train.py").write_text(SCRIPT)
    up = ["up", "--run-dir", "run", "train.py", "--word", "x"]
    with command(here, first, *up) as started:
        link = pasted(started)
        assert COORDINATOR.rpartition(".")[0] in link[1]
        with command(there, second, *link, "--yes") as joined:
            said, _ = joined.communicate(timeout=60)
            assert joined.returncode == 0, said
        shown, _ = started.communicate(timeout=60)
        assert started.returncode == 0, shown
    assert "trained 2 --word x" in shown
    [folder] = (second / "runs").iterdir()
    assert (folder / "workers" / "0.log").read_text() == "trained 2 --word x\n"
    assert (folder / "code" / "train.py").read_text() == SCRIPT
    assert (folder / "tls" / "key.pem").stat().st_mode & 0o077 == 0
    offered = next(line for line in shown.splitlines() if "fingerprint" in line).split()[-1]
    assert f"fingerprint {offered}" in said
