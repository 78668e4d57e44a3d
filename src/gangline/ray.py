# SPDX-License-Identifier: Apache-2.0
"""Gangline in a Ray cluster: a trainer like Ray Train's, whose workers may come and go.

    from gangline.ray import GanglineTrainer

    result = GanglineTrainer(train_loop, scaling_config=ScalingConfig(num_workers=(2, 8))).fit()

The other names are for the function that it runs. They are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangline.engines.ray.data.rows import RayRows as RayRows
    from gangline.engines.ray.reporting import get_checkpoint as get_checkpoint
    from gangline.engines.ray.reporting import get_dataset_shard as get_dataset_shard
    from gangline.engines.ray.reporting import report as report
    from gangline.launch.engines.ray.trainer import GanglineTrainer as GanglineTrainer

_HOMES = {
    "GanglineTrainer": "gangline.launch.engines.ray.trainer",
    "RayRows": "gangline.engines.ray.data.rows",
    "get_checkpoint": "gangline.engines.ray.reporting",
    "get_dataset_shard": "gangline.engines.ray.reporting",
    "report": "gangline.engines.ray.reporting",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'gangline.ray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
