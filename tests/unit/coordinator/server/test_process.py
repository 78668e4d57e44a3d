# SPDX-License-Identifier: Apache-2.0
"""A coordinator as a process finds what it must know in the run folder."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.server import Post
from gangline.files.config import PROFILE_FILE, write_config
from gangline.planning.known import known_profile
from gangline.spec.cluster import Cluster
from gangline.spec.config import FLAT, ExchangeConfig, RunConfig, SurvivalConfig

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = RunConfig(
    run="digits",
    cluster=Cluster.of_speeds((1.0, 0.5)),
    survival=SurvivalConfig(respawn=True, max_respawns=2),
)


def test_the_numbers_of_a_launchers_workers_are_reserved(tmp_path: Path) -> None:
    write_config(CONFIG, tmp_path)
    assert Post.of_run(tmp_path) == Post(config=CONFIG, reserved=4)


def test_a_profile_counts_only_where_the_structure_is_planned(tmp_path: Path) -> None:
    known = known_profile(CONFIG.cluster)
    (tmp_path / PROFILE_FILE).write_bytes(known.to_json())
    write_config(CONFIG, tmp_path)
    assert Post.of_run(tmp_path).profile == known
    flat = ExchangeConfig(structure=FLAT)  # the profile is of an earlier run in this folder
    write_config(msgspec.structs.replace(CONFIG, exchange=flat), tmp_path)
    assert Post.of_run(tmp_path).profile is None


def test_a_folder_without_a_configuration_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gangline.coordinator"]
    ended = subprocess.run(
        [*command, "--run-dir", str(tmp_path), "--lifeline", "0"], capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert f"cannot read the run's configuration {tmp_path / 'config.json'}" in ended.stderr
