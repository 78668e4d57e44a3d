# SPDX-License-Identifier: Apache-2.0
"""What can be asked of MPI's launcher."""

from __future__ import annotations

from gangline.spec.errors import UsageError
from gangline.spec.part import Part


class MpiConfig(Part, frozen=True, kw_only=True):
    """How `mpirun` is called."""

    processes: int | None = None
    """How many processes it starts, each with one worker; None: as many as it has slots."""
    launcher: str | None = None
    """The `mpirun` to use; None: the one beside this python, or the first in PATH."""
    hostfile: str | None = None
    """The file of machines that it is given; None: what it knows by itself."""
    arguments: tuple[str, ...] = ()
    """Further arguments of it, as it takes them."""

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise UsageError(f"mpi.processes must be at least 1, not {self.processes}")
