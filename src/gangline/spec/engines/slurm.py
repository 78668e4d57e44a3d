# SPDX-License-Identifier: Apache-2.0
"""What can be asked of Slurm."""

from __future__ import annotations

import re

from gangline.spec.errors import UsageError
from gangline.spec.part import Part

_ARRAY = re.compile(r"\d+([-,]\d+)*(:\d+)?(%\d+)?")
_LEAST_WARNING_S, _MOST_WARNING_S = 10, 3600


class SlurmConfig(Part, frozen=True, kw_only=True):
    """What the batch job asks for. Inside of a job, its allocation holds."""

    nodes: int | None = None
    """How many nodes; None: what Slurm gives by itself."""
    tasks_per_node: int | None = None
    """How many workers on each; None: one."""
    time: str | None = None
    """The time limit, as sbatch takes it; None: that of the partition."""
    partition: str | None = None
    account: str | None = None
    components: tuple[str, ...] = ()
    """The components of a heterogeneous job, each as options of sbatch; they become groups."""
    array: str | None = None
    """Elements of a job array, such as `0-7`: each brings its nodes to one run when it gets them."""
    requeue: bool = False
    """Put the job back into the queue when its time is over, and go on from its checkpoint."""
    warning_s: int = 90
    """How long before the end of its time the workers leave, and a checkpoint is written."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, such as `--gres=gpu:4`."""

    def __post_init__(self) -> None:
        for name in ("nodes", "tasks_per_node"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"slurm.{name} must be at least 1, not {value}")
        if self.array is not None and not _ARRAY.fullmatch(self.array):
            raise UsageError(f"slurm.array must be such as 0-7 or 1,3,5%2, not {self.array!r}")
        if not _LEAST_WARNING_S <= self.warning_s <= _MOST_WARNING_S:
            raise UsageError(
                f"slurm.warning_s must be {_LEAST_WARNING_S} to {_MOST_WARNING_S} seconds, not "
                f"{self.warning_s}"
            )
        if self.components and (self.array or self.nodes or self.tasks_per_node):
            raise UsageError(
                "slurm.components says what each component asks for: slurm.nodes, "
                "slurm.tasks_per_node and slurm.array cannot be given beside it"
            )
        for one in (*self.options, *self.components):
            if not one.startswith("-") or not one.isprintable():
                raise UsageError(f"{one!r} is no option of sbatch, such as --gres=gpu:4")
