# SPDX-License-Identifier: Apache-2.0
"""Tests of engines start the real thing; `make test-engines` installs it, and says where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "GANGLINE_ENGINES"
"""The folder in which `make test-engines` has put what it installed."""


@pytest.fixture(scope="session")
def engines() -> Path:
    """That folder."""
    named = os.environ.get(VARIABLE)
    if named is None:
        pytest.skip(f"{VARIABLE} is not set: `make test-engines` runs the tests of engines")
    return Path(named).resolve()
