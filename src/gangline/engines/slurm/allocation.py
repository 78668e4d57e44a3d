# SPDX-License-Identifier: Apache-2.0
"""The allocation that this process is in: what a batch script or `salloc` finds in its variables."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from gangline.spec.exchange.structure import RING, Structure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Allocation(NamedTuple):
    """One job of Slurm's."""

    job: str
    components: tuple[int, ...] = ()
    """How many tasks each component of a heterogeneous job has; none where it is not one."""
    array_job: str | None = None
    array_task: str = ""
    """Which element of which array it is; None: of none."""

    @property
    def component_flags(self) -> list[str]:
        """What has `srun` start tasks in all components."""
        if len(self.components) < 2:
            return []
        return [f"--het-group={','.join(str(one) for one in range(len(self.components)))}"]

    def component_of(self, rank: int) -> int:
        """Which component a task is in: their tasks are numbered one component after the other."""
        ends = accumulate(self.components)
        return next((number for number, end in enumerate(ends) if rank < end), 0)

    def structure(self, ranks: Sequence[int]) -> Structure | None:
        """Each component as a group of workers, of these ranks; None: there is one group only."""
        groups: dict[int, list[int]] = {}
        for worker, rank in enumerate(ranks):
            groups.setdefault(self.component_of(rank), []).append(worker)
        if len(groups) < 2:
            return None
        rings = tuple(Structure.flat(groups[one]) for one in sorted(groups))
        return Structure(topology=RING, leader=rings[0].leader, groups=rings)


def find_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """The allocation, where this process may start steps in it; None: it is in none, or in a step."""
    job = environment.get("SLURM_JOB_ID")
    if job is None or "SLURM_STEP_ID" in environment:
        return None
    size = environment.get("SLURM_HET_SIZE", "0")
    counts = [
        environment.get(f"SLURM_NTASKS_HET_GROUP_{one}", "1")
        for one in range(int(size) if size.isdecimal() else 0)
    ]
    return Allocation(
        job=job,
        components=tuple(int(count) if count.isdecimal() else 1 for count in counts),
        array_job=environment.get("SLURM_ARRAY_JOB_ID"),
        array_task=environment.get("SLURM_ARRAY_TASK_ID", ""),
    )
