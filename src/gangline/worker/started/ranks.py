# SPDX-License-Identifier: Apache-2.0
"""Ranks as launchers of parallel programs tell them, by variables: Open MPI, PMIx, MPICH, Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Ranks(NamedTuple):
    """Which of how many processes this is."""

    rank: int
    size: int
    local_rank: int = 0
    """Which of those on this machine."""
    local_size: int = 1
    """How many there are on this machine, as far as is known."""


class _Names(NamedTuple):
    """The variables of one launcher."""

    rank: str
    size: str
    local_rank: str
    local_size: str


OPEN_MPI = _Names(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
HYDRA = _Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
"""MPICH, Intel MPI and others that are started by the hydra launcher."""
SLURM = _Names("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
"""`srun`. The script of a batch job has no step, and is no rank of anything."""


def ranks_by(names: _Names, environment: Mapping[str, str]) -> Ranks | None:
    """What the variables of one launcher say; None: it did not start this process."""
    if names.rank not in environment or names.size not in environment:
        return None
    rank, size = (_whole(name, environment) for name in (names.rank, names.size))
    if not 0 <= rank < size:
        raise UsageError(
            f"{names.rank} is {rank} and {names.size} is {size}: a rank is from 0 to the size - 1; "
            "these variables are set by a launcher, and not by hand"
        )
    local = _whole(names.local_rank, environment) if names.local_rank in environment else 0
    beside = environment.get(names.local_size, "")
    return Ranks(rank, size, local, int(beside) if beside.isdecimal() and int(beside) else 1)


def find_ranks(environment: Mapping[str, str]) -> Ranks | None:
    """What any of these launchers says; None: none of them started this process."""
    for names in (OPEN_MPI, HYDRA, SLURM):
        found = ranks_by(names, environment)
        if found is not None:
            return found
    return None


def _whole(name: str, environment: Mapping[str, str]) -> int:
    try:
        return int(environment[name])
    except ValueError as error:
        raise UsageError(
            f"{name} must be a whole number, not {environment[name]!r}; it is set by a launcher"
        ) from error
