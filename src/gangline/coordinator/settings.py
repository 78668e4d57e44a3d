# SPDX-License-Identifier: Apache-2.0
"""What a coordinator must know of its run before anybody has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.control import ControlOptions
from gangline.control.detection import Detector, RobustDetector
from gangline.control.members.watch import MIN_PATIENCE_S
from gangline.control.sync.leasing import HALVES, check_lease_scheme
from gangline.coordinator.detectors import load_detector
from gangline.spec.profile import ClusterProfile

if TYPE_CHECKING:
    from gangline.spec.config import RunConfig


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One value, which everything in a coordinator is made with."""

    run: str
    expected_workers: int
    """How many found the job."""
    reserved: int = 0
    """Workers bring the numbers below this one themselves."""
    profile: ClusterProfile | None = None
    """One node per worker: the structure is planned from it; None: it stays as it was asked for."""
    detector: Detector = RobustDetector()
    """Tells which members are slower than usual."""
    may_exclude: bool = True
    """Whether workers that a step is shorter without are left out."""
    patience_s: float = MIN_PATIENCE_S
    """A worker that others wait for may be silent for so long at least."""
    lease_scheme: str = HALVES
    """How large the leases are of groups that train at their own pace."""
    defaults: ControlOptions | None = None
    """How the job is controlled where its workers do not say; None: as usual."""

    @classmethod
    def of(
        cls, config: RunConfig, *, reserved: int = 0, profile: ClusterProfile | None = None
    ) -> Settings:
        """For a run of which this was asked."""
        return cls(
            run=config.run,
            expected_workers=config.num_workers,
            reserved=reserved,
            profile=profile,
            detector=load_detector(config.manager.detector),
            may_exclude=not config.manager.everybody,
            patience_s=config.survival.patience_s,
            lease_scheme=check_lease_scheme(config.exchange.lease_scheme),
        )

    def of_team(self, num_founders: int) -> Settings:
        """For one team of the job: its workers have their numbers, and are in one ring."""
        return msgspec.structs.replace(
            self, expected_workers=num_founders, reserved=0, profile=None
        )
