# SPDX-License-Identifier: Apache-2.0
"""A `gangline run --on` an engine in a process of its own, which is looked at from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from gangline.eventlog import read_run
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.observe.ledger import read_ledger
from gangline.protocol.status import Status
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.event import Decision, WorkerReady

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

DEADLINE_S = 170.0
SAMPLES, EPOCHS = 40, 60

# It takes longer than any test may, until there is a file that says otherwise.
SCRIPT = f"""\
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import gangline

torch.manual_seed(2)
torch.set_num_threads(1)
folder = os.path.dirname(os.path.abspath(__file__))
gangline.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn({SAMPLES}, 4)), batch_size=8, shuffle=True)
model, optimizer, loader = gangline.prepare(
    model, optimizer, loader, checkpoint=os.path.join(folder, "checkpoints")
)
for epoch in gangline.epochs({EPOCHS}):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.0 if os.path.exists(os.path.join(folder, "fast")) else 0.1)
if gangline.is_main():
    print(f"trained by {{gangline.world_size()}} workers", flush=True)
"""


class EngineJob:
    """A run on an engine, in a folder of its own."""

    def __init__(
        self, folder: Path, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        (folder / "train.py").write_text(SCRIPT)
        self.deadline_s = time.monotonic() + DEADLINE_S
        self.launcher = subprocess.Popen(
            command,
            cwd=folder,
            env={**(environment or os.environ), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def until(self, condition: Callable[[], Any], what: str, *, is_followed: bool = True) -> Any:
        """Waits until something is so, while the launcher runs."""
        while time.monotonic() < self.deadline_s:
            if is_followed and self.launcher.poll() is not None:
                raise AssertionError(f"{what}: the job is over\n{self.launcher.communicate()[0]}")
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"waited in vain for {what}")

    def status(self) -> Status | None:
        """How the job stands, as its coordinator says."""
        try:
            contact = RunContact(self.run_dir, token_file=self.run_dir / OPERATOR_TOKEN)
            return msgspec.json.decode(contact.ask("/api/status"), type=Status)
        except (LaunchError, UsageError):
            return None

    def trainers(self) -> tuple[int, ...]:
        """The members that have made a step."""
        status = self.status()
        if status is None or status.view is None:
            return ()
        training = [one.worker for one in status.workers if one.state == "training"]
        return tuple(one for one in status.view.members if one in training)

    def pid_of(self, worker: int) -> int:
        """The process of a worker of this machine."""
        status = self.status()
        assert status is not None
        return next(one.pid for one in status.workers if one.worker == worker)

    def go_on(self) -> None:
        """The script stops dawdling."""
        (self.folder / "fast").touch()

    def end(self) -> tuple[int, str]:
        """The launcher's exit code, and all that it said."""
        left_s = max(1.0, self.deadline_s - time.monotonic())
        shown, _ = self.launcher.communicate(timeout=left_s)
        return self.launcher.returncode, shown

    def check_samples(self) -> None:
        """Every sample was used once in every epoch."""
        read_ledger(read_run(self.run_dir, notes=[])).check(length=SAMPLES, epochs=EPOCHS)

    def decisions(self) -> list[str]:
        """What was decided, by whomever."""
        events = read_run(self.run_dir, notes=[])
        return [event.what for event in events if isinstance(event, Decision)]

    def transports(self) -> set[str]:
        """What moved the gradients at first."""
        events = read_run(self.run_dir, notes=[])
        return {event.transport for event in events if isinstance(event, WorkerReady)}

    def __enter__(self) -> EngineJob:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.launcher.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.wait()
        assert self.launcher.stdout is not None
        self.launcher.stdout.close()


def processes_of(folder: Path) -> list[psutil.Process]:
    """The processes whose command or variables name a folder: those of the jobs in it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            told = [*process.cmdline(), process.environ().get("GANGLINE_LAUNCH", "")]
            if any(str(folder) in one for one in told):
                found.append(process)
    return found


def words_of_processes(folder: Path) -> str:
    """All arguments and variables of these processes: what others of the machine's users may see."""
    words = []
    for process in processes_of(folder):
        with contextlib.suppress(psutil.Error):
            words += [*process.cmdline(), *process.environ().values()]
    return "\n".join(words)
