# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures. In a `conftest.py`: `from gangline.testing.fixtures import worker_pool`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gangline.testing.pool import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def worker_pool() -> Iterator[WorkerPool]:
    """One pool for the whole session; any number of workers, any number of jobs."""
    with WorkerPool() as pool:
        yield pool
