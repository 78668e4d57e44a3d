# SPDX-License-Identifier: Apache-2.0
"""GanglineTrainer in a real Ray: rows of a data set exactly once, and results in Ray's form."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from ray_clusters import RayCluster, RayJob

from scripts import SAMPLES, TORCH_TRAINER, TRAINER

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)


def trained(cluster: RayCluster, folder: Path, script: str, *arguments: str) -> RayJob:
    (folder / "driver.py").write_text(script)
    command = ("driver.py", cluster.address, *arguments)
    return RayJob(cluster.packages, folder, *command, run_dir=folder / "runs" / "rows*")


def test_rows_are_used_exactly_once_though_an_actor_dies(
    cluster: RayCluster, tmp_path: Path
) -> None:
    node = cluster.add(1)
    with trained(cluster, tmp_path, TRAINER) as job:
        job.until(lambda: len(job.trainers()) == 2, "two workers")
        lost = max(job.trainers())
        os.kill(job.pid_of(lost), signal.SIGKILL)
        job.until(lambda: len(job.trainers()) == 2 and lost not in job.trainers(), "its successor")
        (tmp_path / "fast").touch()
        assert job.end() == 0, job.shown
        assert "well" in job.shown
        job.check_samples(length=SAMPLES, epochs=4)
    cluster.remove(node)


def test_a_failing_function_is_a_training_failed_error(cluster: RayCluster, tmp_path: Path) -> None:
    node = cluster.add(1)
    with trained(cluster, tmp_path, TRAINER, "fail") as job:
        assert job.end() == 1
        assert "refused: Training failed due to worker errors" in job.shown
        assert "ValueError: as asked" in job.shown
    cluster.remove(node)


def test_a_function_of_ray_train_is_recognised(cluster: RayCluster, tmp_path: Path) -> None:
    node = cluster.add(1)
    with trained(cluster, tmp_path, TORCH_TRAINER) as job:
        assert job.end() == 0, job.shown
        assert (tmp_path / "result").read_text() == "2 workers, epoch 1"
    cluster.remove(node)
