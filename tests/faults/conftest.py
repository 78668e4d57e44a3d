# SPDX-License-Identifier: Apache-2.0
"""What the tests of faults share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def double() -> Iterator[None]:
    """Jobs and replays in double precision, in which they can be compared closely."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
