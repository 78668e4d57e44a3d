# SPDX-License-Identifier: Apache-2.0
"""One Ray for all tests of this folder: two CPUs on its head, and the nodes that tests add."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from ray_clusters import RayCluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: `make test-engines` does it")
    made = RayCluster(2)
    yield made
    made.close()
