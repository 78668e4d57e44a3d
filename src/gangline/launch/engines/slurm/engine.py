# SPDX-License-Identifier: Apache-2.0
"""The engine `slurm`: outside of a job it submits one; inside, it runs."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from gangline.engines.slurm.allocation import find_allocation
from gangline.engines.slurm.commands import ask, check_command
from gangline.engines.slurm.script import batch_script
from gangline.launch.engines.agents import called
from gangline.launch.engines.slurm.array import bring_nodes, is_founder
from gangline.launch.engines.slurm.slots import SlurmSlots
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gangline.engines.slurm.allocation import Allocation
    from gangline.launch.engines.kind import PreparedRun, Tell
    from gangline.launch.program import Program
    from gangline.spec.config import RunConfig


class SlurmRuns:
    """The engine `slurm`."""

    def check(self, config: RunConfig) -> None:
        """Whether Slurm's commands are there."""
        check_command("sbatch" if find_allocation(os.environ) is None else "srun")

    def submit(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> str | None:
        """Outside of a job, one is submitted; an element of an array may bring its nodes to another."""
        allocation = find_allocation(os.environ)
        if allocation is None:
            said = ask("sbatch", "--parsable", given=written(config, program, run_dir=run_dir))
            number = said.strip().partition(";")[0]
            return (
                f"submitted as job {number}: `squeue --job {number}` says how it stands, `scancel "
                f"--full {number}` ends it; its output goes to {program.name}-{number}.out"
            )
        if allocation.array_job is None:
            return None
        if run_dir is None:
            raise UsageError("the elements of an array need one --run-dir, in which they meet")
        if is_founder(allocation, run_dir):
            return None
        return bring_nodes(allocation, run_dir)

    @contextmanager
    def prepared(
        self, config: RunConfig, program: Program, *, run_dir: Path | None, tell: Tell
    ) -> Iterator[PreparedRun]:
        """The job of the tasks that `srun` starts in this allocation."""
        allocation = find_allocation(os.environ)
        assert allocation is not None
        slots = SlurmSlots(allocation)
        with called(
            config,
            program,
            run_dir=run_dir,
            tell=tell,
            slots=slots,
            arrange=lambda asked, ranks: _arranged(asked, allocation, ranks),
        ) as found:
            yield found


ENGINE = SlurmRuns()


def written(config: RunConfig, program: Program, *, run_dir: Path | None) -> str:
    """The script of the batch job that runs a program."""
    return batch_script(
        config,
        program.command,
        name=config.run or program.name,
        run_dir=None if run_dir is None else str(run_dir),
        python=sys.executable,
    )


def _arranged(config: RunConfig, allocation: Allocation, ranks: Sequence[int]) -> RunConfig:
    """The components of a heterogeneous job are groups, unless a structure was asked for."""
    structure = allocation.structure(ranks) if config.exchange.is_planned else None
    if structure is None:
        return config
    return msgspec.structs.replace(
        config, exchange=msgspec.structs.replace(config.exchange, structure=structure)
    )
