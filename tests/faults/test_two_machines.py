# SPDX-License-Identifier: Apache-2.0
"""Two machines with a network between them, by the commands that people type on them."""

from __future__ import annotations

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


class Machine:
    """`gangline` on one of the machines, in a folder of its own; its end comes with this object's."""

    def __init__(self, namespace: str, folder: Path, *arguments: str) -> None:
        folder.mkdir(exist_ok=True)
        self._output = folder / "output"
        inside = ["ip", "netns", "exec", namespace]
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [*inside, sys.executable, "-m", "gangline.cli.main", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def said(self) -> str:
        """All that it has printed so far."""
        return self._output.read_text()

    def pasted(self) -> list[str]:
        """The first line to paste that it printed, as the other machine's shell takes it apart."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for line in self.said.splitlines(keepends=True):
                if line.strip().startswith("gangline join") and line.endswith("\n"):
                    return shlex.split(line)[1:]
            time.sleep(0.05)
        raise AssertionError(f"no line to paste was printed: {self.said}")

    def ended(self) -> int:
        """Its exit code."""
        return self._process.wait(timeout=60)


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
    with Machine(here, first, *up) as started:
        link = started.pasted()
        assert COORDINATOR.rpartition(".")[0] in link[1]
        with Machine(there, second, *link, "--yes") as joined:
            assert joined.ended() == 0, joined.said
        assert started.ended() == 0, started.said
    assert "trained 2 --word x" in started.said
    [folder] = (second / "runs").iterdir()
    assert (folder / "workers" / "0.log").read_text() == "trained 2 --word x\n"
    assert (folder / "code" / "train.py").read_text() == SCRIPT
    assert (folder / "tls" / "key.pem").stat().st_mode & 0o077 == 0
    offered = next(line for line in started.said.splitlines() if "fingerprint" in line)
    assert f"fingerprint {offered.split()[-1]}" in joined.said
