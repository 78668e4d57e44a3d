# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster of two nodes on this machine: real daemons, in a folder of their own."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
START_S = 40.0
_SLURM_CONF = """\
ClusterName=gangline
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1
ReturnToService=2
MpiDefault=none
KillWait=5
InactiveLimit=0
SlurmdTimeout=60
NodeName=DEFAULT CPUs={cpus} RealMemory=1000 NodeAddr=127.0.0.1
NodeName=n[0-1] NodeHostname=localhost Port=[{ports[1]}-{ports[2]}]
PartitionName=all Nodes=n[0-1] Default=YES MaxTime=60 State=UP OverSubscribe=FORCE:8
"""


def missing() -> str:
    """The first daemon that is not installed; empty: all are."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    return next((one for one in DAEMONS if shutil.which(one, path=path) is None), "")


class Cluster:
    """The daemons, from their start to their end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin",
        }

    def __enter__(self) -> Cluster:
        self.folder.mkdir(mode=0o755, exist_ok=True)
        (self.folder / "state").mkdir()
        for node in ("n0", "n1"):
            (self.folder / f"spool-{node}").mkdir()
        conf = _SLURM_CONF.format(folder=self.folder, ports=_free_ports(), cpus=os.cpu_count())
        (self.folder / "slurm.conf").write_text(conf)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        try:
            self._start(
                *("munged", "--force", "--foreground", f"--key-file={key}"),
                *(f"--{one}-file={self.folder}/munge.{one}" for one in ("pid", "log", "seed")),
                f"--socket={self.folder}/munge.socket",
            )
            self._await(lambda: (self.folder / "munge.socket").exists(), "munged")
            self._start("slurmctld", "-D", "-c", "-i")
            for node in ("n0", "n1"):
                self._start("slurmd", "-D", "-N", node)
            self._await(self._is_idle, "both nodes")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.run("scancel", "--user=root", check=False)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and self.run("squeue", "-h", check=False).strip():
            time.sleep(0.1)
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(self, *command: str, check: bool = True, timeout_s: float = 30.0) -> str:
        """What a command of Slurm's says."""
        done = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def _start(self, *command: str) -> None:
        log = (self.folder / f"{command[0]}.out").open("ab")
        with log:
            self._processes.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _is_idle(self) -> bool:
        return self.run("sinfo", "-h", "-o", "%t %D", check=False).strip() == "idle 2"

    def _await(self, is_there, what: str) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + START_S
        while not is_there():
            assert time.monotonic() < deadline, f"{what} did not come up, see {self.folder}"
            time.sleep(0.1)


def _free_ports() -> list[int]:
    """Three ports, the last two of which follow each other."""
    while True:
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            one.bind(("127.0.0.1", 0))
            two.bind(("127.0.0.1", 0))
            port = two.getsockname()[1]
            try:
                three.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return [one.getsockname()[1], port, port + 1]
