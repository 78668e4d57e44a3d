# SPDX-License-Identifier: Apache-2.0
"""The connection to a Ray cluster: made, if nobody has, and checked before anything is started."""

from __future__ import annotations

import logging
import os
import re
import socket
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple

from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gangline.spec.engines.ray import RayConfig

INSTALL = "pip install 'gangline[ray]'"
LEAST = (2, 50)
"""Older versions know no `ScalingConfig(num_workers=(min, max))`."""

_DIAL_S = 5.0


def check_ray() -> None:
    """Raises LaunchError where Ray is not installed, or is too old."""
    try:
        found = version("ray")
    except PackageNotFoundError:
        raise LaunchError(f"ray is not installed here: `{INSTALL}` installs it") from None
    numbers = tuple(int(one) for one in re.findall(r"\d+", found)[:2])
    if numbers < LEAST:
        wanted = ".".join(str(one) for one in LEAST)
        raise LaunchError(
            f"ray {found} is too old, {wanted} is needed: `{INSTALL}` here and on the cluster"
        )


@contextmanager
def connected(config: RayConfig) -> Iterator[None]:
    """A connection to the cluster: that of this process, or a new one that is ended at the end."""
    import ray

    if ray.is_initialized():
        yield
        return
    address = config.address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        _dial(address)
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError) as error:
        where = "here" if address == "auto" else f"at {address}"
        raise LaunchError(
            f"no Ray cluster is found {where} ({_first_line(error)}): start one, `ray start --head`, "
            "or name it, --ray-address HOST:PORT or RAY_ADDRESS"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


class Room(NamedTuple):
    """How many workers the nodes of a cluster have room for, each node for itself."""

    now: int
    """If nobody else used them."""
    nodes: int

    def __str__(self) -> str:
        return f"{self.nodes} nodes with room for {self.now} workers"


def room_for(bundle: Mapping[str, float], *, spare_cpus: int = 0) -> Room:
    """What the nodes that live have, whoever uses it at present; so many CPUs are left to others."""
    import ray

    nodes = [dict(one["Resources"]) for one in ray.nodes() if one["Alive"]]
    # The node with the most of them has them left over most easily.
    for resources in sorted(nodes, key=lambda one: one.get("CPU", 0.0))[-1:]:
        resources["CPU"] = max(0.0, resources.get("CPU", 0.0) - spare_cpus)
    return Room(sum(_fits(resources, bundle) for resources in nodes), len(nodes))


def draining_nodes() -> frozenset[str]:
    """The ids of nodes that are about to end: preempted, or drained by the autoscaler."""
    from ray._private.state import state

    try:
        return frozenset(state.get_draining_nodes())
    except Exception:  # Ray's own, and not documented: without it a node's end is a loss
        return frozenset()


def own_address() -> str:
    """Where the nodes of the cluster reach this process."""
    import ray

    return str(ray.util.get_node_ip_address())


def own_node() -> str:
    """The id of the node that this process is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def pinned_here() -> Any:
    """The scheduling strategy of an actor that lives and dies with this process's node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=own_node(), soft=False)


def _dial(address: str) -> None:
    """Raises OSError where nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_DIAL_S).close()


def _fits(resources: Mapping[str, float], bundle: Mapping[str, float]) -> int:
    return int(min(resources.get(name, 0.0) // value for name, value in bundle.items()))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
