# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests."""

from gangline.testing.fixtures import worker_pool as worker_pool
