# SPDX-License-Identifier: Apache-2.0
"""The file that describes a simulated cluster: a cluster file, with what a simulator must know.

    exchange_s = 0.002

    [[nodes]]
    name = "desk"
    speed = 1.0

    [[nodes]]
    name = "laptop"
    speed = 0.2
    workers = 2
    noise = 0.13
    throttles = [{ from_step = 150, to_step = 300, factor = 3.0 }]

A plain cluster file is a scenario as well, its places and links included.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.simulation.links import SimulatedLink, Spell, check_ends, check_link
from gangline.simulation.workers import SimulatedWorkers, Slowdown
from gangline.spec.cluster import check_names
from gangline.spec.errors import UsageError
from gangline.spec.exchange.structure import RING, Structure
from gangline.spec.sync import parse_sync
from gangline.spec.toml import read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


class Throttle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A time during which a node is slower (or, with a factor below 1, faster)."""

    from_step: int
    to_step: int
    """The first step that is as before."""
    factor: float
    """How many times as long a step takes."""

    def __post_init__(self) -> None:
        if not (0 <= self.from_step < self.to_step and 0 < self.factor < math.inf):
            raise UsageError(
                f"a throttle lasts from a step to a later one and has a factor above 0, not "
                f"from_step = {self.from_step}, to_step = {self.to_step}, factor = {self.factor}"
            )


class SimulatedNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine."""

    name: str
    speed: float = 1.0
    """Relative to a worker with the scenario's `fixed_s` and `per_sample_s`."""
    workers: int = 1
    fixed_s: float | None = None
    """Seconds of a step however small; None: by `speed`."""
    per_sample_s: float | None = None
    """Seconds of one sample; None: by `speed`."""
    noise: float | None = None
    """Relative spread of step times; None: the scenario's."""
    drift: float = 0.0
    """By what fraction a step gets longer from one to the next."""
    pause_probability: float = 0.0
    pause_s: float = 0.0
    """How long a step is interrupted, with that probability."""
    max_samples: int | None = None
    """The greatest share that fits into memory."""
    memory_bytes: float = 1e9
    """Memory in use (`kqv`)."""
    latency_s: float = 0.001
    """Round trip to the coordinator."""
    throttles: tuple[Throttle, ...] = ()
    link_throttles: tuple[Throttle, ...] = ()
    """Times in which its way to its peers is slower: the whole exchange takes so many times as long."""
    spells: tuple[Spell, ...] = ()
    """Like `throttles`, by the clock instead of by steps."""
    place: str = ""
    """Where it is, such as `lab/rack3`; links may lead from place to place."""
    group: str = ""
    """Nodes of the same group sum their gradients in every step, whatever `sync` says; without one,
    each worker is for itself."""
    bytes_per_s: float | None = None
    """Of its own link, each way; None: not limited."""
    delay_s: float = 0.0
    """Of its own link, each way."""

    def __post_init__(self) -> None:
        check_link(
            f"node {self.name!r}", bytes_per_s=self.bytes_per_s, delay_s=self.delay_s, jitter_s=0.0
        )
        for name, value, is_good, expected in (
            ("speed", self.speed, 0 < self.speed < math.inf, "above 0"),
            ("workers", self.workers, self.workers >= 1, "at least 1"),
            ("fixed_s", self.fixed_s, 0 <= (self.fixed_s or 0) < math.inf, "0 or more"),
            ("per_sample_s", self.per_sample_s, _is_above_0(self.per_sample_s), "above 0"),
            ("noise", self.noise, 0 <= (self.noise or 0) < 10, "from 0 to below 10"),
            ("drift", self.drift, -1 < self.drift < 1, "between -1 and 1"),
            ("pause_s", self.pause_s, 0 <= self.pause_s < math.inf, "0 or more"),
            ("pause_probability", self.pause_probability, 0 <= self.pause_probability <= 1, "0…1"),
            ("max_samples", self.max_samples, _is_above_0(self.max_samples), "at least 1"),
            ("memory_bytes", self.memory_bytes, 0 <= self.memory_bytes < math.inf, "0 or more"),
            ("latency_s", self.latency_s, 0 <= self.latency_s < math.inf, "0 or more"),
        ):
            if not is_good:
                raise UsageError(f"node {self.name!r}: {name} must be {expected}, not {value}")


def _is_above_0(value: float | None) -> bool:
    return value is None or 0 < value < math.inf


_NOT_BELOW_0 = (
    "exchange_s",
    "update_s",
    "regroup_s",
    "respawn_s",
    "model_bytes",
    "whole_bytes",
    "merge_s",
    "group_drift",
)


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster, and what happens to it."""

    nodes: tuple[SimulatedNode, ...]
    fixed_s: float = 0.002
    """Seconds of a step however small, of a worker with speed 1."""
    per_sample_s: float = 0.0002
    """Seconds of one sample, of a worker with speed 1."""
    noise: float = 0.05
    """Relative spread of step times, where a node does not say."""
    exchange_s: float = 0.0
    """The exchange of the gradients, after the slowest worker."""
    update_s: float = 0.0
    """The optimizer's step."""
    first_step_factors: tuple[float, ...] = ()
    """How much longer the first steps take."""
    view_lag_steps: int = 2
    """Steps from the one after which a view is published to the first that is cut by it."""
    regroup_s: float = 0.05
    """How long the members of a new group take to find each other and to copy the state."""
    respawn_s: float = 3.0
    """How long a worker that is started again takes until it is ready to join."""
    links: tuple[SimulatedLink, ...] = ()
    """What lies between places or nodes."""
    model_bytes: float = 0.0
    """What an exchange moves: the gradients of a step, or the parameters of a merge."""
    whole_bytes: float | None = None
    """What a merge moves for which all wait, optimizer state included; None: as `model_bytes`."""
    merge_s: float = 0.002
    """What a merge of groups takes from each group's computing: to copy, and to hand on."""
    group_drift: float = 0.0
    """How far the groups' copies are from their mean, by how far the mean has moved."""
    sync: str = "full"
    """How groups are held together, where `--sync` does not say."""

    def __post_init__(self) -> None:
        if not self.nodes:
            raise UsageError("a cluster needs at least one node ([[nodes]] in the file)")
        check_names(node.name for node in self.nodes)
        SimulatedNode(
            name="(defaults)",
            fixed_s=self.fixed_s,
            per_sample_s=self.per_sample_s,
            noise=self.noise,
        )
        for name in _NOT_BELOW_0:
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise UsageError(f"{name} must be 0 or more, not {getattr(self, name)}")
        check_ends(self.nodes, self.links)
        parse_sync(self.sync)
        if min(self.first_step_factors, default=1) <= 0:
            raise UsageError(
                f"first_step_factors must be above 0, not {list(self.first_step_factors)}"
            )
        if self.view_lag_steps < 1:
            raise UsageError(f"view_lag_steps must be at least 1, not {self.view_lag_steps}")

    @classmethod
    def from_toml(cls, path: Path) -> Scenario:
        """Reads a scenario or cluster file; every mistake in it is named."""
        return read_toml(path, cls, what="cluster file")

    @property
    def worker_nodes(self) -> tuple[SimulatedNode, ...]:
        """The node of each worker, in worker order."""
        return tuple(node for node in self.nodes for _ in range(node.workers))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The workers of each group, in the order of the first of them."""
        found: dict[str, list[int]] = {}
        for worker, node in enumerate(self.worker_nodes):
            found.setdefault(f"group {node.group}" if node.group else str(worker), []).append(
                worker
            )
        return tuple(tuple(group) for group in found.values())

    @property
    def structure(self) -> Structure | None:
        """The groups as a tree, by the parts of their names; None where each worker is for itself."""
        nodes = self.worker_nodes
        paths = {
            group: tuple(nodes[group[0]].group.split("/")) if nodes[group[0]].group else (group,)
            for group in self.groups
        }
        if len(paths) == len(nodes) and all(len(path) == 1 for path in paths.values()):
            return None
        return _tree({path: group for group, path in paths.items()})

    def ceilings(self, *, global_batch: int) -> tuple[int, ...]:
        """The most samples of a step that each worker can have."""
        return tuple(node.max_samples or global_batch for node in self.worker_nodes)

    def simulated_workers(self) -> SimulatedWorkers:
        """The workers that this scenario is about."""
        nodes = self.worker_nodes
        fixed = [_given(n.fixed_s, self.fixed_s / n.speed) for n in nodes]
        per_sample = [_given(n.per_sample_s, self.per_sample_s / n.speed) for n in nodes]
        return SimulatedWorkers(
            fixed_s=np.array(fixed),
            per_sample_s=np.array(per_sample),
            noise=np.array([_given(n.noise, self.noise) for n in nodes]),
            log_drift=np.log1p([n.drift for n in nodes]),
            pause_probability=np.array([n.pause_probability for n in nodes]),
            pause_s=np.array([n.pause_s for n in nodes]),
            memory_bytes=np.array([n.memory_bytes for n in nodes]),
            latency_s=np.array([n.latency_s for n in nodes]),
            slowdowns=self._slowdowns(lambda node: node.throttles),
            link_slowdowns=self._slowdowns(lambda node: node.link_throttles),
            spells={row: node.spells for row, node in enumerate(nodes) if node.spells},
            first_step_factors=self.first_step_factors,
        )

    def _slowdowns(
        self, throttles_of: Callable[[SimulatedNode], tuple[Throttle, ...]]
    ) -> tuple[Slowdown, ...]:
        found = []
        first = 0
        for node in self.nodes:
            workers = np.arange(first, first + node.workers)
            first += node.workers
            found += [
                Slowdown(
                    workers=workers,
                    from_step=throttle.from_step,
                    to_step=throttle.to_step,
                    factor=throttle.factor,
                )
                for throttle in throttles_of(node)
            ]
        return tuple(found)


def _tree(paths: Mapping[tuple[object, ...], tuple[int, ...]]) -> Structure:
    """A ring of each group's members, and rings of their leaders above."""
    if () in paths:
        return Structure.flat(paths[()])
    inside: dict[object, dict[tuple[object, ...], tuple[int, ...]]] = {}
    for path, members in paths.items():
        inside.setdefault(path[0], {})[path[1:]] = members
    groups = tuple(_tree(part) for part in inside.values())
    if len(groups) == 1:
        return groups[0]
    return Structure(topology=RING, leader=groups[0].leader, groups=groups)


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
