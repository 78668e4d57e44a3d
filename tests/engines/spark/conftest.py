# SPDX-License-Identifier: Apache-2.0
"""These tests start real Spark: without it they are skipped, and `make test` leaves them out."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest

HERE = __file__.rpartition("/")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if shutil.which("java") is None:
        missing.append("java")
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.engine)
            if missing:
                reason = f"needs {', '.join(missing)}: make test-engines"
                item.add_marker(pytest.mark.skip(reason=reason))
