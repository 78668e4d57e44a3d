# SPDX-License-Identifier: Apache-2.0
"""`gangline run --on ray` in a real Ray: workers and nodes come and go, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
from ray_clusters import RayCluster, RayJob

from scripts import EPOCHS, SAMPLES, TRAIN

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)
RUN = ("-m", "gangline.cli.main", "run", "--on", "ray")


def started(cluster: RayCluster, folder: Path, *flags: str, **variables: str) -> RayJob:
    write_script(folder)
    common = ("--ray-address", cluster.address, "--listen", "127.0.0.1", "--everybody")
    run = (*RUN, *common, "--run-dir", "run", *flags, "train.py")
    return RayJob(cluster.packages, folder, *run, run_dir=folder / "run", **variables)


def write_script(folder: Path) -> None:
    (folder / "train.py").write_text(f"FOLDER = {str(folder)!r}\n{TRAIN}")


def test_workers_and_nodes_come_and_go(cluster: RayCluster, tmp_path: Path) -> None:
    node = cluster.add(1)
    with started(cluster, tmp_path, "--min-workers", "3") as job:
        first = job.until(lambda: len(job.trainers()) == 3 and job.trainers(), "three workers")
        os.kill(job.pid_of(0), signal.SIGKILL)
        job.until(lambda: len(job.trainers()) == 3 and 0 not in job.trainers(), "a successor")
        cluster.remove(node)
        job.until(lambda: len(job.trainers()) == 2, "two workers without the node")
        node = cluster.add(1)
        job.until(lambda: len(job.trainers()) == 3, "a worker on the new node")
        assert len(job.trainers() - first) >= 2
        (tmp_path / "fast").touch()
        assert job.end() == 0, job.shown
        assert "trained 3" in job.shown
        job.check_samples(length=SAMPLES, epochs=EPOCHS)
        assert not [one for one in job.processes() if one.is_running()]
    cluster.remove(node)


def test_a_killed_driver_leaves_nothing(cluster: RayCluster, tmp_path: Path) -> None:
    with started(cluster, tmp_path, "--min-workers", "2") as job:
        job.until(lambda: len(job.trainers()) == 2, "two workers")
        left = [*job.processes(), *psutil.Process(job.driver.pid).children(recursive=True)]
        assert len(left) >= 5  # two agents, two workers, a coordinator
        job.driver.kill()
        job.driver.wait()
        _, alive = psutil.wait_procs(left, timeout=60)
        assert not alive


def test_a_script_of_a_ray_job_runs_on_the_whole_cluster(
    cluster: RayCluster, tmp_path: Path
) -> None:
    write_script(tmp_path)
    (tmp_path / "fast").touch()
    # What Ray puts into the environment of a submitted job's script.
    told = json.dumps({"metadata": {"job_submission_id": "raysubmit_1"}})
    variables = {"RAY_JOB_CONFIG_JSON_ENV_VAR": told, "RAY_ADDRESS": cluster.address}
    run_dir = tmp_path / "runs" / "train-*"
    with RayJob(cluster.packages, tmp_path, "train.py", run_dir=run_dir, **variables) as job:
        assert job.end() == 0, job.shown
        assert "trained 2" in job.shown
        job.check_samples(length=SAMPLES, epochs=EPOCHS)


def test_too_much_is_refused_before_anything_starts(cluster: RayCluster, tmp_path: Path) -> None:
    with started(cluster, tmp_path, "--min-workers", "9", "--ray-gpus", "1") as job:
        assert job.end() == 1
        assert "and it takes 9 (--min-workers) with 1 CPU, 1 GPU each" in job.shown


def test_no_cluster_is_named_with_what_to_do(packages: Path, tmp_path: Path) -> None:
    write_script(tmp_path)
    run = (*RUN, "--ray-address", "127.0.0.1:1", "train.py")
    with RayJob(packages, tmp_path, *run, run_dir=tmp_path / "run") as job:
        assert job.end() == 1
        assert "no Ray cluster is found at 127.0.0.1:1" in job.shown
        assert "ray start --head" in job.shown
