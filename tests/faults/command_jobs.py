# SPDX-License-Identifier: Apache-2.0
"""A `gangline run` in a process of its own, and the `gangline join`s that take part in its job."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.eventlog import read_run
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.observe.ledger import read_ledger
from gangline.protocol.status import Status
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE_S = 100.0
SAMPLES, EPOCHS = 40, 60
COMMAND = (sys.executable, "-m", "gangline.cli.main")

# It takes longer than any test may, until there is a file that says otherwise. Worker 0 fails when
# there is a file for it.
SCRIPT = f"""\
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import gangline

torch.manual_seed(2)
torch.set_num_threads(1)
gangline.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn({SAMPLES}, 4)), batch_size=8, shuffle=True)
model, optimizer, loader = gangline.prepare(model, optimizer, loader)
for epoch in gangline.epochs({EPOCHS}):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.0 if os.path.exists("fast") else 0.05 if epoch < 20 else 0.5)
        if os.path.exists("fail") and '"worker":0' in os.environ["GANGLINE_LAUNCH"]:
            raise ValueError("as asked")
"""


class CommandJob:
    """A `gangline run` in a process of its own, and those that join it."""

    def __init__(self, folder: Path, *flags: str, nodes: int = 2) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        (folder / "train.py").write_text(SCRIPT)
        self.processes: list[subprocess.Popen[str]] = []
        self.deadline_s = time.monotonic() + DEADLINE_S
        own = ("--everybody", "--nodes", str(nodes), "--run-dir", "run")
        self.launcher = self.start("run", *own, *flags)

    def start(self, verb: str, *flags: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, verb, *flags, "train.py"],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def join(self) -> subprocess.Popen[str]:
        return self.start("join", "run", "--run-dir", f"join-{len(self.processes)}")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        while time.monotonic() < self.deadline_s:
            if self.launcher.poll() is not None:
                raise AssertionError(f"{what}: the job is over\n{self.launcher.communicate()[0]}")
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"waited in vain for {what}")

    def status(self) -> Status | None:
        try:
            contact = RunContact(self.run_dir, token_file=self.run_dir / OPERATOR_TOKEN)
            return msgspec.json.decode(contact.ask("/api/status"), type=Status)
        except (LaunchError, UsageError):
            return None

    def trainers(self) -> tuple[int, ...]:
        """The members that have made a step, and have not been asked to leave."""
        status = self.status()
        if status is None or status.view is None:
            return ()
        training = [one.worker for one in status.workers if one.state == "training"]
        return tuple(one for one in status.view.members if one in training)

    def known(self) -> set[int]:
        """The workers that the coordinator knows now."""
        status = self.status()
        return set() if status is None else {one.worker for one in status.workers}

    def leave(self, worker: int) -> None:
        contact = RunContact(self.run_dir, token_file=self.run_dir / OPERATOR_TOKEN)
        contact.ask("/api/leave", body=msgspec.json.encode({"worker": worker}))

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        shown, _ = process.communicate(timeout=max(1.0, self.deadline_s - time.monotonic()))
        return process.returncode, shown

    def check_samples(self) -> None:
        """The run folder has the events of those that joined, too."""
        events = read_run(self.run_dir, notes=[])
        read_ledger(events).check(length=SAMPLES, epochs=EPOCHS)

    def decisions(self) -> list[Decision]:
        events = read_run(self.run_dir, notes=[])
        return [event for event in events if isinstance(event, Decision)]

    def has_decided(self, what: str) -> bool:
        return any(one.what == what for one in self.decisions())

    def __enter__(self) -> CommandJob:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
