# SPDX-License-Identifier: Apache-2.0
"""Ray Train's own configurations, in the words of a run. What a job here cannot do is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.engines.ray.results import Keeping
from gangline.files.config import config_of
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.spec.config import RunConfig

_SCALING = ("trainer_resources", "use_tpu", "topology", "label_selector")
_ELASTIC_S = "elastic_resize_monitor_interval_s"


def run_config(scaling: Any, options: Mapping[str, Any], *, run: str) -> RunConfig:
    """A run's configuration, from a `ray.train.ScalingConfig` and options as a file has them."""
    for name in _SCALING:
        if getattr(scaling, name, None):
            raise UsageError(f"ScalingConfig({name}=…) is not for a GanglineTrainer: leave it out")
    default = type(scaling)()
    if getattr(scaling, _ELASTIC_S, None) != getattr(default, _ELASTIC_S, None):
        raise UsageError(
            f"ScalingConfig({_ELASTIC_S}=…): a GanglineTrainer takes workers in when they come, and "
            "looks for room all the time: leave it out"
        )
    least, most = _workers(scaling.num_workers)
    bundle = _bundle(scaling)
    given = {name: dict(part) if isinstance(part, dict) else part for name, part in options.items()}
    for name in ("engine", "ray", "cluster"):
        if name in given:
            raise UsageError(f"gangline_config has {name!r}: the ScalingConfig says that")
    hosts = {**given.pop("hosts", {}), "min_workers": least, "max_workers": most, "bring": True}
    return config_of(
        {
            **given,
            "run": run,
            "engine": {"name": "ray"},
            "hosts": hosts,
            "ray": {
                "cpus": bundle.pop("CPU", 0.0),
                "gpus": bundle.pop("GPU", 0.0),
                "resources": bundle,
                "strategy": scaling.placement_strategy,
            },
        }
    )


def check_run(asked: Any) -> None:
    """Refuses what a `ray.train.RunConfig` may say and nobody here would do."""
    plain = type(asked)()
    for name in ("callbacks", "logging_config", "failure_config"):
        if getattr(asked, name, None) != getattr(plain, name, None):
            raise UsageError(
                f"RunConfig({name}=…) is not for a GanglineTrainer: lost workers are replaced while "
                "the others go on, and gangline_config={'survival': …} says more"
            )


def keeping(asked: Any) -> Keeping:
    """Which checkpoints a `ray.train.CheckpointConfig` keeps."""
    if asked is None:
        return Keeping()
    return Keeping(
        asked.num_to_keep, asked.checkpoint_score_attribute, asked.checkpoint_score_order == "max"
    )


def _workers(asked: Any) -> tuple[int, int]:
    least, most = asked if isinstance(asked, tuple | list) else (asked, asked)
    if not (isinstance(least, int) and isinstance(most, int) and 1 <= least <= most):
        raise UsageError(f"ScalingConfig(num_workers={asked!r}): give a number, or (least, most)")
    return least, most


def _bundle(scaling: Any) -> dict[str, float]:
    """What one worker takes, with Ray Train's own defaults."""
    given = {name: float(value) for name, value in (scaling.resources_per_worker or {}).items()}
    if scaling.use_gpu:
        given.setdefault("GPU", 1.0)
    if scaling.accelerator_type:
        given[f"accelerator_type:{scaling.accelerator_type}"] = 0.001
    if not scaling.resources_per_worker:
        given.setdefault("CPU", 1.0)
    return given
