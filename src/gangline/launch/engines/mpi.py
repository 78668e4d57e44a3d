# SPDX-License-Identifier: Apache-2.0
"""Runs by MPI's launcher: `mpirun` starts an agent in each of its slots, and each agent a worker.

The agents are no MPI programs, and outlive their workers: so a worker that is killed costs nothing but
itself, whatever the launcher thinks of ranks that die.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.engines.called.process import LauncherProcess
from gangline.engines.mpi.launcher import find_launcher
from gangline.launch.engines.agents import called
from gangline.launch.engines.slots import AGENT, write_invitation
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.engines.mpi.launcher import MpiLauncher
    from gangline.launch.engines.kind import PreparedRun, Tell
    from gangline.launch.program import Program
    from gangline.protocol.calling import Invitation
    from gangline.spec.config import RunConfig
    from gangline.spec.engines.mpi import MpiConfig


class MpiSlots:
    """The slots of `mpirun`."""

    def __init__(self, asked: MpiConfig, launcher: MpiLauncher) -> None:
        self._asked = asked
        self._launcher = launcher
        self._process: LauncherProcess | None = None
        self._file: Path | None = None

    @property
    def expected(self) -> int | None:
        """As many as were asked for; else the agents know it."""
        return self._asked.processes

    def start(self, invitation: Invitation, run_dir: Path) -> None:
        """Starts `mpirun`, whose ranks read the invitation from a file that is ours alone."""
        self._file = write_invitation(invitation, run_dir)
        program = (sys.executable, *AGENT, str(self._file))
        self._process = LauncherProcess(
            self._launcher.command(self._asked, program),
            environment=self._launcher.environment(os.environ, is_root=os.geteuid() == 0),
            log=run_dir / "mpirun.log",
        )

    def problem(self) -> str | None:
        """That `mpirun` has ended, and its last words."""
        return None if self._process is None else self._process.problem()

    def close(self) -> None:
        """Ends `mpirun`, and forgets the invitation."""
        if self._process is not None:
            self._process.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)


class MpiRuns:
    """The engine `mpi`."""

    def check(self, config: RunConfig) -> None:
        """Whether there is a launcher that we know how to call."""
        find_launcher(config.mpi.launcher)
        hostfile = config.mpi.hostfile
        if hostfile is not None and not Path(hostfile).is_file():
            raise UsageError(f"mpi.hostfile: there is no file {hostfile} (looked in {Path.cwd()})")

    def submit(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> str | None:
        """It is run by us."""
        return None

    @contextmanager
    def prepared(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> Iterator[PreparedRun]:
        """The job of the ranks that `mpirun` starts."""
        slots = MpiSlots(config.mpi, find_launcher(config.mpi.launcher))
        with called(config, program, run_dir=run_dir, tell=tell, slots=slots) as found:
            yield found


ENGINE = MpiRuns()
