# SPDX-License-Identifier: Apache-2.0
"""Gangline trains one PyTorch model on whatever machines you have.

    import gangline

    gangline.init()
    model, optimizer, loader = gangline.prepare(model, optimizer, loader, global_batch=256)

The names below are the whole public surface. They are loaded when first used, so that the parts of
the package that need no torch (the planner, the simulator, the reports) start without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gangline.spec.errors import GanglineError as GanglineError

if TYPE_CHECKING:
    from gangline.runtime.api import SampleState as SampleState
    from gangline.runtime.api import batches as batches
    from gangline.runtime.api import epochs as epochs
    from gangline.runtime.api import evaluate as evaluate
    from gangline.runtime.api import init as init
    from gangline.runtime.api import is_main as is_main
    from gangline.runtime.api import is_update as is_update
    from gangline.runtime.api import no_sync as no_sync
    from gangline.runtime.api import prepare as prepare
    from gangline.runtime.api import rank as rank
    from gangline.runtime.api import steps as steps
    from gangline.runtime.api import world_size as world_size
    from gangline.runtime.saving import save as save
    from gangline.runtime.together import all as all
    from gangline.runtime.together import any as any
    from gangline.runtime.together import barrier as barrier
    from gangline.runtime.together import gather as gather
    from gangline.runtime.together import is_ghost as is_ghost
    from gangline.runtime.together import mean as mean
    from gangline.runtime.together import sum as sum
    from gangline.runtime.turns import main_first as main_first

__version__ = "0.1.0"

_API = (
    "SampleState",
    "batches",
    "epochs",
    "evaluate",
    "init",
    "is_main",
    "is_update",
    "no_sync",
    "prepare",
    "rank",
    "steps",
    "world_size",
)

_TOGETHER = ("all", "any", "barrier", "gather", "is_ghost", "mean", "sum")
_HOMES = {
    **dict.fromkeys(_API, "gangline.runtime.api"),
    **dict.fromkeys(_TOGETHER, "gangline.runtime.together"),
    "main_first": "gangline.runtime.turns",
    "save": "gangline.runtime.saving",
}

__all__ = ["GanglineError", "__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'gangline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
