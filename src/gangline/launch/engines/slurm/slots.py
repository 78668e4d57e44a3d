# SPDX-License-Identifier: Apache-2.0
"""The tasks of a Slurm job: `srun` starts an agent in each, and gives all of them the invitation."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gangline.engines.called.process import LauncherProcess
from gangline.engines.slurm.commands import check_command
from gangline.launch.engines.slots import AGENT, write_invitation

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.engines.slurm.allocation import Allocation
    from gangline.protocol.calling import Invitation

_SURVIVAL = ("--kill-on-bad-exit=0", "--wait=0", "--no-kill")
"""A task or a node that is lost ends no others."""


def start_agents(allocation: Allocation, invitation: bytes | Path, *, log: Path) -> LauncherProcess:
    """An agent in each task of the allocation, with an invitation on standard input, or in a file."""
    command = [check_command("srun"), *_SURVIVAL, *allocation.component_flags]
    command += [sys.executable, *AGENT]
    if isinstance(invitation, bytes):
        return LauncherProcess(command, environment=os.environ, log=log, given=invitation)
    return LauncherProcess([*command, str(invitation)], environment=os.environ, log=log)


class SlurmSlots:
    """The tasks of this job; elements of its array bring more."""

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation
        self._process: LauncherProcess | None = None
        self._file: Path | None = None

    @property
    def expected(self) -> int | None:
        """The agents know it."""
        return None

    def start(self, invitation: Invitation, run_dir: Path) -> None:
        """Starts `srun`, which gives its standard input to all tasks.

        It gives it to one component only, where there are several; and the other elements of an array
        have a step of their own. These find the invitation in the run folder.
        """
        log = run_dir / f"srun-{self._allocation.job}.log"
        if self._allocation.components or self._allocation.array_job is not None:
            self._file = write_invitation(invitation, run_dir)
        self._process = start_agents(self._allocation, self._file or invitation.line(), log=log)

    def problem(self) -> str | None:
        """That `srun` has ended, and its last words."""
        return None if self._process is None else self._process.problem()

    def close(self) -> None:
        """Ends `srun`, and forgets the invitation."""
        if self._process is not None:
            self._process.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)
