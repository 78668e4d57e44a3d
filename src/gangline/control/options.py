# SPDX-License-Identifier: Apache-2.0
"""How a run is to be controlled: everything that `decide` lets a user choose."""

from __future__ import annotations

import math

import msgspec

from gangline.control.detection import Detector, RobustDetector
from gangline.control.shares.pulling import check_any_allocation
from gangline.spec.errors import UsageError
from gangline.spec.exchange.structure import Structure
from gangline.spec.outlook import Outlook
from gangline.spec.view import Whole


class ControlOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The choices of one run. Structure and outlook may be asked for anew while it lasts."""

    global_batch: int
    """Samples per step, over all workers."""
    allocation: str = "balanced"
    """The policy that cuts the global batch; `planning.allocation.ALLOCATIONS` lists them.

    Where workers pull, that of the shares is the base of it: `control.shares.pulling`."""
    minimum: int = 1
    """The least share of a worker: 1, or more where BatchNorm needs it."""
    minimum_gain: float = 0.02
    """`balanced`: how much shorter a step must get, at least, for a new cut to be worth it."""
    recut_steps: int = 100
    """`random` and `kqv`: steps between two cuts. Their publication gives no number, but averages
    its measurements over 100 updates, so that each of its averages is over one cut."""
    seed: int = 0
    """What `random` draws with."""
    structure: Structure | None = None
    """How the workers shall exchange; views fit it to their members. None: all in one ring."""
    whole: Whole | None = None
    """What the members are a part of; None: they are the job."""
    has_owner: bool = False
    """Whether the samples are the first member's own: others are with it, and compute none."""
    outlook: Outlook | None = None
    """What the structure is planned from, once enough was measured; None: it stays as it is."""

    detector: Detector = RobustDetector()
    """Tells who is slower than usual; `control.detection.DETECTORS` names some."""
    may_part: bool = False
    """Whether the members could also train apart, so that it is worth a hint."""
    may_exclude: bool = True
    """Whether a member that slows the others down may be put out until it is fast again."""
    exclusion_cost_s: float = 2.0
    """What it costs to go on without a worker and to take it back: so long it is waited for."""
    steady_s: float = 2.0
    """For so long a trouble, or its end, must last to be said: nobody is excluded for a shorter one."""

    def __post_init__(self) -> None:
        check_any_allocation(self.allocation)
        if self.global_batch < 1:
            raise UsageError(f"global_batch must be at least 1, not {self.global_batch}")
        if self.minimum < 0:
            raise UsageError(f"minimum must be 0 or more samples, not {self.minimum}")
        if not 0 <= self.minimum_gain < 1:
            raise UsageError(
                f"minimum_gain is a fraction of the step time, from 0 to below 1, "
                f"not {self.minimum_gain}"
            )
        if self.recut_steps < 1:
            raise UsageError(f"recut_steps must be at least 1, not {self.recut_steps}")
        if self.seed < 0:
            raise UsageError(f"seed must be 0 or more, not {self.seed}")
        for name in ("exclusion_cost_s", "steady_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(
                    f"{name} is a number of seconds from 0 on, not {getattr(self, name)}"
                )
