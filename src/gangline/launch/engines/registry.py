# SPDX-License-Identifier: Apache-2.0
"""The engines by name. One is imported when it is asked for, and not before."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from gangline.launch.engines.kind import EngineKind

_MODULES = {
    "local": "gangline.launch.engines.local",
    "hosts": "gangline.launch.engines.hosts",
    "mpi": "gangline.launch.engines.mpi",
    "slurm": "gangline.launch.engines.slurm",
    "ray": "gangline.launch.engines.ray.engine",
    "k8s": "gangline.launch.engines.kubernetes",
    "spark": "gangline.launch.engines.spark",
}
"""Where the `ENGINE` of each is; the names are those of `spec.engines.engine.ENGINES`."""


def find_engine(name: str) -> EngineKind:
    """The engine of that name."""
    return cast("EngineKind", importlib.import_module(_MODULES[name]).ENGINE)


def registered() -> tuple[str, ...]:
    """The names of all engines."""
    return tuple(_MODULES)
