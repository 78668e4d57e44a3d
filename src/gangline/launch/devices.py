# SPDX-License-Identifier: Apache-2.0
"""One worker per GPU, where a machine has some and nobody has said otherwise."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gangline.spec.config import ComputeConfig, RunConfig
from gangline.spec.errors import UsageError
from gangline.spec.machines.devices import AUTO, CPU, VISIBLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GPU_FILE = re.compile(r"nvidia\d+")
_NO_CUDA = re.compile(r"^cuda\b.*=\s*None\s*$", re.MULTILINE)


def find_gpus(
    environment: Mapping[str, str] | None = None, *, devices: Path = Path("/dev")
) -> tuple[str, ...]:
    """This machine's GPUs that torch can use, as CUDA_VISIBLE_DEVICES names them; loads no torch."""
    variables = os.environ if environment is None else environment
    try:
        count = sum(_GPU_FILE.fullmatch(name) is not None for name in os.listdir(devices))
    except OSError:
        count = 0
    if count == 0 or not _torch_has_cuda():
        return ()
    seen = variables.get(VISIBLE)
    if seen is None:
        return tuple(str(number) for number in range(count))
    return tuple(name.strip() for name in seen.split(",") if name.strip() not in ("", "-1"))


def placed(config: RunConfig, *, is_described: bool, gpus: Sequence[str]) -> RunConfig:
    """The same with the devices in full, and as many workers as those, unless the nodes are described.

    Where nodes are emulated, `auto` leaves the GPUs to them.
    """
    asked = config.compute.devices
    if asked == CPU:
        return config
    if asked == AUTO:
        chosen = tuple(gpus) if _is_one_machine(config) else ()
    else:
        chosen = tuple(asked.split(","))
        _check_there(chosen, gpus)
    if not chosen:
        return config
    cluster = config.cluster
    if not is_described:
        (node,) = cluster.nodes
        node = msgspec.structs.replace(node, workers=len(chosen))
        cluster = msgspec.structs.replace(cluster, nodes=(node,))
    compute = ComputeConfig(devices=",".join(chosen))
    return msgspec.structs.replace(config, cluster=cluster, compute=compute)


def _is_one_machine(config: RunConfig) -> bool:
    """Whether nothing is emulated, and no device was chosen by the cluster's file."""
    first, *others = config.cluster.nodes
    is_plain = first.speed == 1 and VISIBLE not in first.environment
    return is_plain and not others and not config.cluster.has_network


def _check_there(chosen: Sequence[str], gpus: Sequence[str]) -> None:
    missing = [one for one in chosen if one.isdecimal() and one not in gpus]
    if missing:
        there = f"there are {', '.join(gpus)}" if gpus else "torch can use none on this machine"
        raise UsageError(
            f"compute.devices names GPU {missing[0]}, which is not there: {there}; "
            "`gangline doctor` says more"
        )


def _torch_has_cuda() -> bool:
    """Whether torch was built for GPUs, by a file of it: to load it takes seconds."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return True
    return _NO_CUDA.search(text) is None
