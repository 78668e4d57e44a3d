# SPDX-License-Identifier: Apache-2.0
"""The flags of runs on MPI."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.flags.groups import FlagGroup, Sets


class MpiFlags(FlagGroup, frozen=True, kw_only=True):
    """How `mpirun` is called."""

    mpi_processes: Annotated[
        int | None,
        typer.Option(help="With --on mpi: how many workers (as many as mpirun has slots)."),
        Sets("mpi.processes"),
    ] = None
    mpi_hostfile: Annotated[
        Path | None,
        typer.Option(help="With --on mpi: the file of machines that mpirun is given."),
        Sets("mpi.hostfile", str),
    ] = None
    mpi_launcher: Annotated[
        str | None,
        typer.Option(help="With --on mpi: the mpirun to use (beside python, or in PATH)."),
        Sets("mpi.launcher"),
    ] = None
    mpi_arguments: Annotated[
        str | None,
        typer.Option(
            metavar="ARGUMENTS",
            help="With --on mpi: further arguments of mpirun, such as '--map-by node'.",
        ),
        Sets("mpi.arguments", shlex.split),
    ] = None
