# SPDX-License-Identifier: Apache-2.0
"""How each engine prepares a run: one module or folder per engine, found by its name."""

from gangline.launch.engines.kind import EngineKind as EngineKind
from gangline.launch.engines.kind import PreparedRun as PreparedRun
from gangline.launch.engines.registry import find_engine as find_engine
