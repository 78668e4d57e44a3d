# SPDX-License-Identifier: Apache-2.0
"""`srun python train.py`: the tasks of one step are the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.worker.started.parallel import ParallelWorker
from gangline.worker.started.ranks import SLURM, ranks_by

if TYPE_CHECKING:
    from collections.abc import Mapping


def recognise(environment: Mapping[str, str]) -> ParallelWorker | None:
    """What the variables of a step say."""
    ranks = ranks_by(SLURM, environment)
    if ranks is None:
        return None
    job, step = environment.get("SLURM_JOB_ID", "0"), environment.get("SLURM_STEP_ID", "0")
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    return ParallelWorker(
        launcher="srun",
        ranks=ranks,
        key=f"slurm-{job}.{step}.{restarts}",
        is_here=environment.get("SLURM_STEP_NUM_NODES", "1") == "1",
    )
