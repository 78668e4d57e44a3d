# SPDX-License-Identifier: Apache-2.0
"""What this machine can do: a report that changes nothing and survives whatever is broken.

    report = inspect_machine()

Each fact is found on its own: a tool that is missing, hangs or talks nonsense costs its own fact,
with the reason, and no other. Nothing is created: no control group, no namespace, no CUDA context.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import msgspec
import psutil

from gangline.profiling import probes
from gangline.profiling.cgroups import ControlGroups, inspect_cgroups

CAP_NET_ADMIN = 12
CAP_SYS_ADMIN = 21


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """How many processors there are, and how many of them this process may use."""

    logical: int
    physical: int | None
    """None where the system does not tell hyper-threads from cores."""
    affinity: int
    """Logical processors that this process may run on."""
    quota: float | None
    """Processors' worth of time that the control groups allow; None is no limit."""


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of processor cache, as the first processor sees it."""

    level: int
    kind: str
    """`data`, `instruction` or `unified`."""
    size_bytes: int
    shared_by: int
    """Logical processors that share one such cache."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Main memory."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    """What the control groups allow; None is no limit."""


class Namespaces(msgspec.Struct, frozen=True, kw_only=True):
    """Whether network namespaces with shaped links can be made here."""

    possible: bool
    missing: list[str]
    """What stands in the way: `linux`, `root`, `ip`, `tc`, …"""


class MachineReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `gangline doctor` knows about this machine."""

    host: str
    system: str
    python: str
    torch: probes.Torch
    cores: Cores
    caches: list[Cache]
    memory: Memory
    cgroups: ControlGroups
    namespaces: Namespaces
    gpus: list[probes.Gpu]
    tools: dict[str, probes.Tool]
    """Programs and packages by name, there or not: mpirun, mpi4py, java, pyspark, ray, …"""


def inspect_machine(root: Path = Path("/")) -> MachineReport:
    """Looks at the machine; `root` is where `proc` and `sys` are. Takes a few seconds."""
    cgroups = inspect_cgroups(root)
    torch, gpus = probes.inspect_torch()
    return MachineReport(
        host=platform.node(),
        system=platform.platform(),
        python=platform.python_version(),
        torch=torch,
        cores=inspect_cores(cgroups),
        caches=inspect_caches(root),
        memory=inspect_memory(cgroups),
        cgroups=cgroups,
        namespaces=inspect_namespaces(root),
        gpus=gpus,
        tools=probes.inspect_tools(),
    )


def inspect_cores(cgroups: ControlGroups) -> Cores:
    """Counts processors; what may be used is the least of affinity and quota."""
    logical = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    return Cores(
        logical=logical,
        physical=psutil.cpu_count(logical=False),
        affinity=affinity,
        quota=cgroups.cpu_quota,
    )


def inspect_caches(root: Path) -> list[Cache]:
    """The caches of the first processor, by level; empty where the system does not show them."""
    folder = root / "sys/devices/system/cpu/cpu0/cache"
    caches = []
    for index in sorted(folder.glob("index*")):
        try:
            cache = Cache(
                level=int(_read(index / "level")),
                kind=_read(index / "type").lower(),
                size_bytes=_parse_size(_read(index / "size")),
                shared_by=_count_processors(_read(index / "shared_cpu_list")),
            )
        except (OSError, ValueError):
            continue
        caches.append(cache)
    return sorted(caches, key=lambda cache: (cache.level, cache.kind))


def inspect_memory(cgroups: ControlGroups) -> Memory:
    """Main memory; a limit that is no smaller than the memory itself is none."""
    memory = psutil.virtual_memory()
    limit = cgroups.memory_limit_bytes
    return Memory(
        total_bytes=memory.total,
        available_bytes=memory.available,
        limit_bytes=limit if limit is not None and limit < memory.total else None,
    )


def inspect_namespaces(root: Path) -> Namespaces:
    """What would be needed for a network namespace; none is made to find out."""
    needs = {
        "linux": (root / "proc/self/ns/net").exists(),
        "root": os.geteuid() == 0,
        "the capabilities SYS_ADMIN and NET_ADMIN": _has_capabilities(root),
        "ip": shutil.which("ip") is not None,
        "tc": shutil.which("tc") is not None,
    }
    missing = [name for name, there in needs.items() if not there]
    return Namespaces(possible=not missing, missing=missing)


def _has_capabilities(root: Path) -> bool:
    try:
        lines = _read(root / "proc/self/status").splitlines()
        mask = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return False
    return all(mask >> bit & 1 for bit in (CAP_NET_ADMIN, CAP_SYS_ADMIN))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


def _parse_size(text: str) -> int:
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def _count_processors(text: str) -> int:
    """The length of a list like `0-3,8`."""
    total = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total
