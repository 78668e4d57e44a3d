# SPDX-License-Identifier: Apache-2.0
"""What is asked of a Ray cluster."""

from __future__ import annotations

import math

from gangline.spec.errors import UsageError
from gangline.spec.part import Part

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
"""Ray's own ways to place the workers that begin a job."""


class RayConfig(Part, frozen=True, kw_only=True):
    """Which cluster, and what each worker takes of it."""

    address: str | None = None
    """HOST:PORT of the cluster; None: the one that RAY_ADDRESS names, or that this machine is in."""
    cpus: float = 1.0
    """What a worker takes of Ray's `CPU`."""
    gpus: float = 0.0
    """What it takes of Ray's `GPU`; it sees these alone."""
    resources: dict[str, float] = {}  # noqa: RUF012 -- a struct copies it
    """What else it takes, by Ray's names."""
    strategy: str = "PACK"
    """How the workers that begin are placed, one of `STRATEGIES`."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise UsageError(
                f"ray.strategy {self.strategy!r} is not known; choose one of: {', '.join(STRATEGIES)}"
            )
        for name, value in self.bundle.items():
            if not 0 < value < math.inf:
                raise UsageError(f"ray.resources: {name} must be above 0, not {value}")
        if min(self.cpus, self.gpus) < 0:
            raise UsageError("ray.cpus and ray.gpus are 0 or more")
        if not self.bundle:
            raise UsageError("ray.cpus, ray.gpus or ray.resources: a worker must take something")
        if self.address is not None and "://" in self.address:
            raise UsageError(
                f"ray.address {self.address!r}: write HOST:PORT. A Ray client (ray://) is no part of "
                "the cluster: submit the command as a job, `ray job submit -- gangline run --on ray …`"
            )

    @property
    def bundle(self) -> dict[str, float]:
        """What one worker takes, as a placement group's bundle has it."""
        own = {"CPU": self.cpus, "GPU": self.gpus}
        return {**{name: value for name, value in own.items() if value}, **self.resources}
