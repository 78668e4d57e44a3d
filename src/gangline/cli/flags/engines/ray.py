# SPDX-License-Identifier: Apache-2.0
"""The flags of `gangline run --on ray`."""

from typing import Annotated

import typer

from gangline.cli.flags.groups import FlagGroup, Sets
from gangline.spec.engines.ray import STRATEGIES, RayConfig
from gangline.spec.errors import UsageError


def _read_resources(given: list[str]) -> dict[str, float]:
    found = {}
    for one in given:
        name, equals, amount = one.partition("=")
        try:
            found[name] = float(amount)
        except ValueError:
            name = ""
        if not name or not equals:
            raise UsageError(f"--ray-resource {one!r}: write NAME=AMOUNT, such as accelerator=1")
    return found


class RayFlags(FlagGroup, frozen=True, kw_only=True):
    """The flags that say which cluster, and what each worker takes of it."""

    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="On Ray: the cluster (RAY_ADDRESS, or this node's)."
        ),
        Sets("ray.address"),
    ] = None
    ray_cpus: Annotated[
        float, typer.Option(help="On Ray: the CPUs of each worker."), Sets("ray.cpus")
    ] = RayConfig().cpus
    ray_gpus: Annotated[
        float, typer.Option(help="On Ray: the GPUs of each worker."), Sets("ray.gpus")
    ] = RayConfig().gpus
    ray_resource: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=AMOUNT", help="On Ray: what else each worker takes."),
        Sets("ray.resources", _read_resources),
    ] = None
    ray_strategy: Annotated[
        str,
        typer.Option(
            metavar="|".join(STRATEGIES), help="On Ray: how the first workers are placed."
        ),
        Sets("ray.strategy"),
    ] = RayConfig().strategy
