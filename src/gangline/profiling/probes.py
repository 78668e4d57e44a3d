# SPDX-License-Identifier: Apache-2.0
"""Looks for the programs and packages that gangline can use, each at arm's length.

Programs are asked for their version with a time limit. Packages are looked up, not imported, since
importing ray or pyspark takes seconds and importing MPI starts it; where only an import can tell
whether a package works (mpi4py without an MPI library), a process of its own does it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from importlib import metadata, util

import msgspec

TIMEOUT_S = 5.0
"""A program that has not told its version by then is broken."""

IMPORT_TIMEOUT_S = 20.0
"""The same for a process that imports a package."""

MPI_IMPORT = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(mpi4py.__version__, 'with', MPI.Get_library_version().splitlines()[0])"
)


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A program or a package."""

    version: str | None
    """None where it is not there or does not work."""
    problem: str | None = None
    """Why it cannot be used; None where it can."""

    @property
    def is_usable(self) -> bool:
        """Whether it is there and works."""
        return self.problem is None


class Torch(msgspec.Struct, frozen=True, kw_only=True):
    """The installed torch."""

    version: str | None
    cpu_capability: str | None
    """The widest vector instructions that its kernels use here, like `AVX512`."""
    cuda: str | None
    """The CUDA version that it was built for; None is a build for CPUs."""
    problem: str | None = None
    """Why it cannot be imported; None where it can."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that torch can use."""

    name: str
    memory_bytes: int


def inspect_torch() -> tuple[Torch, list[Gpu]]:
    """Imports torch (slow the first time) and asks it about the processor and the GPUs."""
    try:
        import torch
    except Exception as error:
        # A broken torch raises ImportError, OSError (a missing library) and worse.
        problem = f"{type(error).__name__}: {first_line(str(error))}"
        return Torch(version=None, cpu_capability=None, cuda=None, problem=problem), []
    facts = Torch(
        version=str(torch.__version__),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        cuda=torch.version.cuda,
    )
    return facts, _gpus()


def _gpus() -> list[Gpu]:
    import torch

    with warnings.catch_warnings():
        # A driver that is too old is a warning in torch; the table says it in its own words.
        warnings.simplefilter("ignore")
        try:
            indices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
            found = [torch.cuda.get_device_properties(index) for index in indices]
        except (RuntimeError, AssertionError):
            return []
    return [Gpu(name=gpu.name, memory_bytes=gpu.total_memory) for gpu in found]


def inspect_tools() -> dict[str, Tool]:
    """Everything that is optional, by name."""
    return {
        "nvidia-smi": ask_program("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
        "nvidia-cuda-mps-control": find_program("nvidia-cuda-mps-control"),
        "mpirun": ask_program("mpirun", "--version"),
        "mpi4py": ask_package("mpi4py", MPI_IMPORT),
        "java": _quoted_version(ask_program("java", "-version")),
        "pyspark": find_package("pyspark"),
        "ray": find_package("ray"),
        "scikit-learn": find_package("scikit-learn", module="sklearn"),
    }


def find_program(name: str) -> Tool:
    """A program that has no harmless way to tell its version: its path stands for it."""
    path = shutil.which(name)
    return Tool(version=path, problem=None if path else "not on the PATH")


def ask_program(name: str, *arguments: str) -> Tool:
    """A program, by the first line of what it says when called like this."""
    path = shutil.which(name)
    if path is None:
        return Tool(version=None, problem="not on the PATH")
    return _run([path, *arguments], timeout_s=TIMEOUT_S)


def find_package(name: str, *, module: str | None = None) -> Tool:
    """A package, by its metadata: it is not imported."""
    try:
        if util.find_spec(module or name) is None:
            return Tool(version=None, problem="not installed")
        return Tool(version=metadata.version(name))
    except metadata.PackageNotFoundError:
        return Tool(version="of unknown version")
    except (ImportError, ValueError) as error:
        return Tool(version=None, problem=f"cannot be imported: {first_line(str(error))}")


def ask_package(name: str, code: str) -> Tool:
    """A package, by what this code prints in a process of its own."""
    found = find_package(name)
    if not found.is_usable:
        return found
    return _run([sys.executable, "-c", code], timeout_s=IMPORT_TIMEOUT_S)


def _run(command: list[str], *, timeout_s: float) -> Tool:
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Tool(version=None, problem=f"cannot be run: {error.strerror}")
    with child:
        try:
            output, _ = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # The whole session: a hanging wrapper script has children that would stay.
            os.killpg(child.pid, signal.SIGKILL)
            return Tool(version=None, problem=f"did not answer within {timeout_s:g} s")
    lines = output.decode(errors="replace").strip().splitlines()
    if child.returncode != 0:
        # The last line of a traceback says what is wrong, the first one only that something is.
        said = lines[-1].strip() if lines else "nothing"
        return Tool(version=None, problem=f"fails with code {child.returncode}: {said}")
    return Tool(version=lines[0].strip() if lines else "of unknown version")


def _quoted_version(tool: Tool) -> Tool:
    """Java puts its version in quotes, in a line of which only that is of interest."""
    found = re.search(r'"([^"]+)"', tool.version or "")
    return Tool(version=found[1]) if found else tool


def first_line(text: str) -> str:
    """The first line of a message, for a table."""
    return (*text.strip().splitlines(), "")[0]
