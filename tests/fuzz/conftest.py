# SPDX-License-Identifier: Apache-2.0
"""What these tests share with the unit tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
