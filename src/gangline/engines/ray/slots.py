# SPDX-License-Identifier: Apache-2.0
"""The places for workers in a Ray cluster: an actor for each, made anew wherever there is room.

Those that the job begins with are one placement group, so that they come together or not at all. The
others are asked for one by one: Ray starts them when it has room, and its autoscaler makes some.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from gangline.engines.ray.cluster import Room, draining_nodes, room_for
from gangline.engines.ray.line import ActorLine
from gangline.engines.ray.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from gangline.engines.ray.services.desk import Service
    from gangline.spec.engines.ray import RayConfig

MAX_SLOTS = 256
_LOOK_S = 2.0
"""How often it is looked which nodes there are, and which are about to end."""


class Slots:
    """All places of one job. Closed, nothing is left of them in the cluster."""

    def __init__(
        self,
        config: RayConfig,
        *,
        least: int,
        most: int | None,
        services: Mapping[str, Service],
        runtime_env: Any = None,
        spare_cpus: int = 0,
    ) -> None:
        """With no `most`, there are as many as all nodes together have room for.

        Beyond the `least`, so many CPUs are left to others: data sets are computed by tasks.
        """
        self._config = config
        self._least, self._most = least, most
        self._services = dict(services)
        self._runtime_env = runtime_env or None
        self.spare_cpus = spare_cpus
        self._group: Any = None
        self._coming: dict[int, tuple[Any, Future[str]]] = {}
        self._lines: dict[int, tuple[ActorLine, str]] = {}
        self._looked_s = 0.0
        self.room = Room(0, 0)
        """What the cluster could hold, when it was looked at last."""
        self.problem = ""
        """Why an actor could not be made, the last time that one could not."""

    @property
    def target(self) -> int:
        """How many places there are to be at present."""
        wanted = self.room.now if self._most is None else self._most
        if self.spare_cpus:
            wanted = min(wanted, self.room.now)
        return min(MAX_SLOTS, max(self._least, wanted))

    def open(self) -> None:
        """Asks for the places that the job begins with."""
        import ray

        bundles = [self._config.bundle] * self._least
        self._group = ray.util.placement_group(bundles, strategy=self._config.strategy)
        self.look()

    def look(self) -> None:
        """Looks around, now and then; workers on nodes that are about to end are told to leave."""
        now = time.monotonic()
        if now - self._looked_s < _LOOK_S:
            return
        self._looked_s = now
        self.room = room_for(self._config.bundle, spare_cpus=self.spare_cpus)
        draining = draining_nodes()
        for line, node in self._lines.values():
            if node in draining:
                line.drain()

    def line(self, number: int) -> ActorLine | None:
        """A line to the agent of a place, once there is one; it may be asked for again and again."""
        self._lines.pop(number, None)
        if number not in self._coming:
            if number < self.target:
                self._coming[number] = self._request(number)
            return None
        actor, opening = self._coming[number]
        if not opening.done():
            return None
        del self._coming[number]
        try:
            node = opening.result()
        except Exception as error:
            self.problem = str(error).strip().splitlines()[-1][:300]
            return None
        line = ActorLine(actor)
        self._lines[number] = (line, node)
        return line

    def close(self) -> None:
        """Ends all actors, and gives back what was reserved."""
        import ray

        for line, _ in self._lines.values():
            line.close()
        for actor, _ in self._coming.values():
            with contextlib.suppress(Exception):
                ray.kill(actor)
        if self._group is not None:
            with contextlib.suppress(Exception):  # the cluster may be gone
                ray.util.remove_placement_group(self._group)
        self._lines, self._coming, self._group = {}, {}, None

    def _request(self, number: int) -> tuple[Any, Future[str]]:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        asked = self._config
        strategy: Any = "SPREAD" if "SPREAD" in asked.strategy else "DEFAULT"
        if number < self._least:
            strategy = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=number
            )
        actor = (
            ray.remote(Slot)
            .options(
                num_cpus=asked.cpus,
                num_gpus=asked.gpus,
                resources=asked.resources or None,
                scheduling_strategy=strategy,
                max_restarts=0,
                runtime_env=self._runtime_env,
            )
            .remote(self._services)
        )
        return actor, actor.open.remote().future()
