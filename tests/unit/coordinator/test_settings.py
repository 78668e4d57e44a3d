# SPDX-License-Identifier: Apache-2.0
"""What a coordinator must know of its run comes from what was asked of the run."""

from __future__ import annotations

import pytest

from gangline.control.detection import AverageDetector
from gangline.coordinator.settings import Settings
from gangline.planning.known import known_profile
from gangline.spec.cluster import Cluster
from gangline.spec.config import ManagerConfig, RunConfig, SurvivalConfig
from gangline.spec.errors import UsageError

CLUSTER = Cluster.of_speeds((1.0, 0.5), workers=2)


def test_they_are_those_of_the_runs_configuration() -> None:
    config = RunConfig(
        run="digits",
        cluster=CLUSTER,
        survival=SurvivalConfig(patience_s=7.0),
        manager=ManagerConfig(detector="paper-average"),
    )
    found = Settings.of(config, reserved=6)
    assert (found.run, found.expected_workers, found.reserved) == ("digits", 4, 6)
    assert isinstance(found.detector, AverageDetector)
    assert found.patience_s == 7.0


def test_a_team_is_watched_as_the_job_is_and_numbers_and_plans_nothing() -> None:
    config = RunConfig(cluster=CLUSTER, survival=SurvivalConfig(patience_s=7.0))
    whole = Settings.of(config, reserved=4, profile=known_profile(CLUSTER))
    team = whole.of_team(2)
    assert (team.expected_workers, team.reserved, team.profile) == (2, 0, None)
    assert (team.detector, team.patience_s) == (whole.detector, 7.0)


def test_a_detector_that_is_not_known_is_named() -> None:
    with pytest.raises(UsageError, match="nobody"):
        Settings.of(RunConfig(manager=ManagerConfig(detector="nobody")))
