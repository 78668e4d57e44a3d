# SPDX-License-Identifier: Apache-2.0
"""A real Ray of several (virtual) nodes, and jobs in it, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from gangline.eventlog import read_run
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.observe.ledger import read_ledger
from gangline.protocol.status import Status
from gangline.spec.errors import GanglineError

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
DEADLINE_S = 500.0


def environment(packages: Path) -> dict[str, str]:
    """With Ray to be found there, and everything on the loopback interface."""
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": f"{path}{os.pathsep}{packages}" if path else str(packages),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


class RayCluster:
    """Led by lines, see `cluster_process.py`; ends with this object."""

    def __init__(self, packages: Path, cpus: int) -> None:
        self.packages = packages
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "cluster_process.py"), str(cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(packages),
            text=True,
        )
        self.address = self._answer()

    def add(self, cpus: int = 1) -> str:
        return self._say(f"add {cpus}")

    def remove(self, node: str) -> None:
        assert self._say(f"remove {node}") == "removed"

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def _say(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class RayJob:
    """A driver process, and the run that it leads; whatever happens, nothing of it is left."""

    def __init__(
        self, packages: Path, folder: Path, *command: str, run_dir: Path, **variables: str
    ) -> None:
        self.folder, self._run_dir = folder, run_dir
        self.deadline_s = time.monotonic() + DEADLINE_S
        self._log = (folder / "driver.log").open("w+")
        self.driver = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**environment(packages), "GANGLINE_TEST": str(folder), **variables},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def run_dir(self) -> Path:
        """The run's folder, which may have a name that the driver chose."""
        found = sorted(self._run_dir.parent.glob(self._run_dir.name))
        return found[0] if found else self._run_dir

    @property
    def shown(self) -> str:
        return (self.folder / "driver.log").read_text()

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        while time.monotonic() < self.deadline_s:
            value = condition()
            if value:
                return value
            if self.driver.poll() is not None:
                raise AssertionError(f"{what}: the driver has ended\n{self.shown}")
            time.sleep(0.1)
        raise AssertionError(f"waited in vain for {what}\n{self.shown}")

    def trainers(self) -> set[int]:
        """The members that have made a step."""
        try:
            contact = RunContact(self.run_dir, token_file=self.run_dir / OPERATOR_TOKEN)
            status = msgspec.json.decode(contact.ask("/api/status"), type=Status)
        except GanglineError:
            return set()
        if status.view is None:
            return set()
        training = {one.worker for one in status.workers if one.state == "training"}
        return training & set(status.view.members)

    def pid_of(self, worker: int) -> int:
        path = self.run_dir / "events" / f"worker-{worker}.jsonl"
        return int(json.loads(path.read_text().splitlines()[0])["pid"])

    def processes(self) -> list[psutil.Process]:
        """Agents and workers of this job, wherever they hang."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                is_agent = "gangline.engines.agent" in line
                is_worker = "GANGLINE_LAUNCH" in process.environ()
                if is_agent or (is_worker and str(self.folder) in str(process.environ())):
                    found.append(process)
        return found

    def end(self) -> int:
        return self.driver.wait(max(1.0, self.deadline_s - time.monotonic()))

    def check_samples(self, *, length: int, epochs: int) -> None:
        read_ledger(read_run(self.run_dir, notes=[])).check(length=length, epochs=epochs)

    def __enter__(self) -> RayJob:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.driver.poll() is None:
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()
        self._log.close()
