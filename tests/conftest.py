# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests."""

import sys
from multiprocessing import forkserver

from gangline.testing.fixtures import worker_pool as worker_pool


def pytest_collection_finish() -> None:
    """Starts the server that processes are forked from, if there are tests that want it."""
    if "forking" in sys.modules:
        forkserver.ensure_running()
