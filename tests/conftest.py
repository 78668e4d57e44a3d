# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests."""

import sys
from multiprocessing import forkserver

from hypothesis import settings

from gangline.testing.fixtures import worker_pool as worker_pool

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("gangline", deadline=None)
settings.load_profile("gangline")


def pytest_collection_finish() -> None:
    """Starts the server that processes are forked from, if there are tests that want it."""
    if "forking" in sys.modules:
        forkserver.ensure_running()
