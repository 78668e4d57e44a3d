# SPDX-License-Identifier: Apache-2.0
"""One Ray for all tests of this folder: two CPUs on its head, and the nodes that tests add."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ray_clusters import RayCluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder in which `make test-engines` has installed Ray."""
    named = os.environ.get("GANGLINE_ENGINES")
    if named is None:
        pytest.skip("GANGLINE_ENGINES is not set: `make test-engines` runs the tests of engines")
    folder = Path(named).resolve() / "ray"
    if not (folder / "ray").is_dir():
        pytest.skip(f"Ray is not in {folder}: `make test-engines` installs it")
    return folder


@pytest.fixture(scope="session")
def cluster(packages: Path) -> Iterator[RayCluster]:
    made = RayCluster(packages, 2)
    yield made
    made.close()
