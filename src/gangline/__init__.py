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
from gangline.version import VERSION

if TYPE_CHECKING:
    from gangline.mapreduce.api import imap as imap
    from gangline.mapreduce.api import map as map
    from gangline.mapreduce.api import reduce as reduce
    from gangline.mapreduce.evaluating import evaluate as evaluate
    from gangline.observe.page.notebook import report as report
    from gangline.paramserver.functional.api import paramserv as paramserv
    from gangline.pipelining.api import pipeline as pipeline
    from gangline.tiling.api import tile as tile
    from gangline.worker.api import SampleState as SampleState
    from gangline.worker.api import batches as batches
    from gangline.worker.api import device as device
    from gangline.worker.api import epochs as epochs
    from gangline.worker.api import init as init
    from gangline.worker.api import is_main as is_main
    from gangline.worker.api import is_update as is_update
    from gangline.worker.api import log as log
    from gangline.worker.api import no_sync as no_sync
    from gangline.worker.api import prepare as prepare
    from gangline.worker.api import rank as rank
    from gangline.worker.api import steps as steps
    from gangline.worker.api import world_size as world_size
    from gangline.worker.together.calls import all as all
    from gangline.worker.together.calls import any as any
    from gangline.worker.together.calls import barrier as barrier
    from gangline.worker.together.calls import gather as gather
    from gangline.worker.together.calls import is_ghost as is_ghost
    from gangline.worker.together.calls import mean as mean
    from gangline.worker.together.calls import sum as sum
    from gangline.worker.together.saving import save as save
    from gangline.worker.together.turns import main_first as main_first

__version__ = VERSION

_API = (
    "SampleState",
    "batches",
    "device",
    "epochs",
    "init",
    "is_main",
    "is_update",
    "log",
    "no_sync",
    "prepare",
    "rank",
    "steps",
    "world_size",
)

_TOGETHER = ("all", "any", "barrier", "gather", "is_ghost", "mean", "sum")
_LOOPS = ("imap", "map", "reduce")
_HOMES = {
    **dict.fromkeys(_API, "gangline.worker.api"),
    **dict.fromkeys(_TOGETHER, "gangline.worker.together.calls"),
    **dict.fromkeys(_LOOPS, "gangline.mapreduce.api"),
    "evaluate": "gangline.mapreduce.evaluating",
    "main_first": "gangline.worker.together.turns",
    "paramserv": "gangline.paramserver.functional.api",
    "pipeline": "gangline.pipelining.api",
    "report": "gangline.observe.page.notebook",
    "save": "gangline.worker.together.saving",
    "tile": "gangline.tiling.api",
}

__all__ = ["GanglineError", "__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'gangline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
