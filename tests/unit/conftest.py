# SPDX-License-Identifier: Apache-2.0
"""What unit tests share lies in this folder, and is imported by its bare name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
