# SPDX-License-Identifier: Apache-2.0
"""What a simulated run comes by on its way: epochs, faults, workers that are started again."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gangline.control.sync.leasing import HALVES, check_lease_scheme
from gangline.spec.errors import UsageError
from gangline.spec.faults import FaultPlan


class Switch(NamedTuple):
    """An operator has groups held together in another way."""

    at_s: float
    sync: str


class Outage(NamedTuple):
    """The coordinator is killed, and started again later with what it has kept."""

    at_s: float
    for_s: float


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """What lies before a run, beyond its number of steps."""

    samples: int | None = None
    """The length of an epoch; None: the whole run is one."""
    faults: FaultPlan = FaultPlan()
    respawns: int = 0
    """How many killed workers are started again, each as a newcomer with a number of its own."""
    switches: tuple[Switch, ...] = ()
    """Where groups train at their own pace: when that is changed."""
    outages: tuple[Outage, ...] = ()
    """When the coordinator is away."""
    lease_scheme: str = HALVES
    """How large the leases are of groups that train at their own pace."""

    def __post_init__(self) -> None:
        if self.samples is not None and self.samples < 1:
            raise UsageError(f"an epoch has at least 1 sample, not {self.samples}")
        if self.respawns < 0:
            raise UsageError(f"workers are started again 0 times or more, not {self.respawns}")
        check_lease_scheme(self.lease_scheme)


class Position(NamedTuple):
    """The next thing that a worker has to do. A greater position is further ahead."""

    step: int = 0
    epoch: int = 0
    start: int = 0
    """Where in the epoch's order the next step begins."""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """A group was lost, and another one went on."""

    view: int
    """The view that went on."""
    lost: tuple[int, ...]
    """Who was put out; empty where the same members met again."""
    took_s: float
    """From the first fault that hit one of the lost until the members went on."""
