# SPDX-License-Identifier: Apache-2.0
"""The schemas of Kubernetes and Kubeflow, where `make test-engines` has installed them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def packages() -> Iterator[Path]:
    """The folder of these packages, which this process finds, too."""
    named = os.environ.get("GANGLINE_ENGINES")
    if named is None:
        pytest.skip("GANGLINE_ENGINES is not set: `make test-engines` runs the tests of engines")
    folder = Path(named).resolve() / "ray"
    if not (folder / "kubernetes_validate").is_dir():
        pytest.skip(f"no schemas are in {folder}: `make test-engines` installs them")
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))
