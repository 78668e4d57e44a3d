# SPDX-License-Identifier: Apache-2.0
"""Which engine starts the workers of a run."""

from __future__ import annotations

from gangline.spec.errors import UsageError
from gangline.spec.part import Part

LOCAL, HOSTS = "local", "hosts"
RAY, KUBERNETES = "ray", "k8s"
ENGINES = (
    LOCAL,
    HOSTS,
    "mpi",
    "slurm",
    RAY,
    KUBERNETES,
    "spark",
)
"""All engines by name. The options of one are the part of `RunConfig` that has its name."""


class EngineConfig(Part, frozen=True, kw_only=True):
    """Who starts the workers."""

    name: str | None = None
    """One of `ENGINES`; None: `hosts` where a hosts file is named, else `local`."""

    def __post_init__(self) -> None:
        if self.name is not None and self.name not in ENGINES:
            raise UsageError(
                f"engine.name {self.name!r} is not known; choose one of: {', '.join(ENGINES)}"
            )
