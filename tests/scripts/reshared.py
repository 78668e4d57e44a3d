# SPDX-License-Identifier: Apache-2.0
"""Runs another script in this process, with shares that change at every step: `reshared.py SCRIPT`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from gangline.testing.shares import changing_shares

if __name__ == "__main__":
    script = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(script.parent))
    with changing_shares():
        runpy.run_path(str(script), run_name="__main__")
