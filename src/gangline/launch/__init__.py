# SPDX-License-Identifier: Apache-2.0
"""Runs, from what was asked: `run(config, program)` is what `gangline run` does."""

from gangline.launch.engines.local import prepared as prepared
from gangline.launch.run import resolve as resolve
from gangline.launch.run import run as run
