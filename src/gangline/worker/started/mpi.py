# SPDX-License-Identifier: Apache-2.0
"""`mpirun python train.py`: Open MPI, and launchers of the MPICH family."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gangline.worker.started.parallel import ParallelWorker
from gangline.worker.started.ranks import HYDRA, OPEN_MPI, ranks_by

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.worker.started.parallel import Share

_NAMESPACES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
"""What a launcher calls a job of its own, where it calls it something."""


def recognise(environment: Mapping[str, str]) -> ParallelWorker | None:
    """What the variables of an MPI launcher say."""
    ranks = ranks_by(OPEN_MPI, environment) or ranks_by(HYDRA, environment)
    if ranks is None:
        return None
    is_here = ranks.local_size == ranks.size
    named = next((environment[name] for name in _NAMESPACES if environment.get(name)), "")
    if not named and is_here:
        named = f"of-{os.getppid()}"  # hydra's proxy started all of them
    return ParallelWorker(
        launcher="mpirun",
        ranks=ranks,
        key=named,
        is_here=is_here,
        find_share=(lambda: None) if is_here else (lambda: find_broadcast(ranks.size)),
    )


def find_broadcast(size: int) -> Share | None:
    """MPI's own broadcast, where mpi4py is there and was built for the MPI that started us."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # it is not installed, or finds no library of MPI
        return None
    world = MPI.COMM_WORLD
    if world.Get_size() != size:  # of another MPI: each rank takes itself to be alone
        return None

    def broadcast(said: bytes) -> bytes:
        heard: bytes = world.bcast(said, root=0)
        return heard

    return broadcast
