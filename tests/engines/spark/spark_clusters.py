# SPDX-License-Identifier: Apache-2.0
"""Real Spark for tests: drivers as processes, and a standalone master with its workers.

All of it is bound to loopback, at any free port, and ends with the test's process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from gangline.engines.local import child_command
from gangline.spec.enclosure import OPEN

if TYPE_CHECKING:
    from collections.abc import Iterator

START_S = 300.0
"""How long a Java process may take on a machine that is busy."""
DRIVER_S = 600.0
ROOT = Path(__file__).parents[3]
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java for processes that live for a minute: it starts in half of the processor time."""
NAMES = ("127.0.0.1", "localhost")


def environment(**more: str) -> dict[str, str]:
    """What drivers, masters and workers run with: they find python, and see no other Spark."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    path = [str(ROOT / "src"), str(Path(__file__).parent), kept.get("PYTHONPATH", "")]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(one for one in path if one),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "JAVA_TOOL_OPTIONS": SHORT_LIVED,
        **more,
    }


def settings(folder: Path, **more: str) -> dict[str, str]:
    """A session's settings: loopback only, nothing on a page, little memory."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "700m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        **more,
    }


class Process:
    """A process that ends with the test, and whose output is read."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str]) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*child_command(OPEN), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def await_line(self, pattern: str, *, timeout_s: float) -> re.Match[str]:
        """Waits until it has written something."""
        deadline = time.monotonic() + timeout_s
        while True:
            match = re.search(pattern, self.output())
            if match is not None:
                return match
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{pattern!r} was not written:\n{self.output()[-6000:]}")
            time.sleep(0.1)

    def wait(self, timeout_s: float) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.output()[-6000:]}") from None

    def end(self) -> None:
        """Ends it and what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def spark_class() -> str:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "bin" / "spark-class")


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and workers of two cores each; its URL.

    Spark takes workers with different names for different machines, as a speculative copy wants one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    java = environment(SPARK_DAEMON_MEMORY="256m", SPARK_HOME=str(Path(spark_class()).parents[1]))
    deploy = "org.apache.spark.deploy"
    started: list[Process] = []
    try:
        ports = ["--port", "0", "--webui-port", "0"]
        master = Process(
            ["/bin/bash", spark_class(), f"{deploy}.master.Master", "--host", NAMES[0], *ports],
            folder / "master.log",
            java,
        )
        started.append(master)
        found = master.await_line(r"Starting Spark master at (spark://\S+)", timeout_s=START_S)
        master.await_line(r"I have been elected leader", timeout_s=START_S)
        for number in range(len(NAMES)):
            own = ["--host", NAMES[number], "--cores", "2", "--memory", "2g"]
            own += ["--work-dir", str(folder / f"work{number}"), *ports]
            command = ["/bin/bash", spark_class(), f"{deploy}.worker.Worker", *own, found[1]]
            started.append(Process(command, folder / f"worker{number}.log", java))
        for worker in started[1:]:
            worker.await_line("Successfully registered with master", timeout_s=START_S)
        yield found[1]
    finally:
        for one in reversed(started):
            one.end()


def processes_with(text: str) -> list[psutil.Process]:
    """The processes of this machine whose command line or environment has this text."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_named = text in " ".join(process.cmdline())
            if is_named or text in " ".join(process.environ().values()):
                found.append(process)
    return found


def executors_of(application: str) -> list[psutil.Process]:
    """The executors of an application on a standalone cluster."""
    return [
        process
        for process in processes_with(application)
        if any("CoarseGrainedExecutorBackend" in one for one in process.cmdline())
    ]


def has_worker(executor: psutil.Process) -> bool:
    """Whether one of its tasks has a worker that trains, and does not only stand by."""
    below = executor.children(recursive=True)
    return any("gangline.engines.spark.training.trainee" in one.cmdline() for one in below)


def drive(name: str, folder: Path, master: str, *more: str, limit_s: float = DRIVER_S) -> Any:
    """Runs one of the drivers to its end; what it answered."""
    driver = start_driver(name, folder, master, *more)
    try:
        code = driver.wait(limit_s)
    finally:
        driver.end()
    assert code == 0, driver.output()[-8000:]
    return json.loads((folder / "answer.json").read_text())


def start_driver(name: str, folder: Path, master: str, *more: str) -> Process:
    script = str(Path(__file__).with_name("spark_drivers.py"))
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, script, name, str(folder), master, *more]
    return Process(command, folder / "driver.log", environment())
