# SPDX-License-Identifier: Apache-2.0
"""What is true of the members, though nobody in the run knows it: how fast they are, what were best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.control import MetricsMeasured
from gangline.planning.allocation.balanced import balanced, slowest_s
from gangline.simulation.network import Network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.control import ControlOptions
    from gangline.planning.allocation.bounds import Floats, Shares
    from gangline.simulation.in_step.rounds import Round
    from gangline.simulation.lives import Life
    from gangline.simulation.scenario import Scenario


class SimulatedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step, and how good it could have been."""

    step: int
    view: int
    step_s: float
    """What it took: the slowest worker, the exchange and the update."""
    model_s: float
    """What the slowest worker takes under these shares, without noise, pauses and first steps."""
    optimum_s: float
    """What it takes under the best shares, known to nobody in the run."""


class Yardstick:
    """The members' true costs, and the steps measured by them."""

    def __init__(self, scenario: Scenario, *, options: ControlOptions, seed: int) -> None:
        self._all = self._workers = scenario.simulated_workers()
        self._scenario = scenario
        self._options = options
        self._rng = np.random.default_rng(seed)
        self._link_rng = np.random.default_rng((seed, 2))
        self.network = Network(scenario, np.random.default_rng((seed, 3)))
        self._group_of = {row: i for i, rows in enumerate(scenario.groups) for row in rows}
        self._groups: list[list[int]] = []
        self._rows = np.arange(len(self._all.fixed_s))
        self._max_samples: Shares = np.zeros(0, dtype=np.int64)
        self._slowdown: Floats = np.zeros(0)
        self._optimum_s = 0.0
        self._steps: dict[int, SimulatedStep] = {}

    def enter(self, members: Sequence[Life]) -> None:
        """These are the members from now on."""
        nodes, batch = self._scenario.worker_nodes, self._options.global_batch
        self._rows = np.array([life.row for life in members], dtype=np.int64)
        self._workers = self._all.selected(self._rows)
        ceilings = [nodes[row].max_samples or batch for row in self._rows.tolist()]
        self._max_samples = np.array(ceilings, dtype=np.int64)
        self._slowdown = np.zeros(0)
        by_group: dict[int, list[int]] = {}
        for row in self._rows.tolist():
            by_group.setdefault(self._group_of[row], []).append(row)
        groups = list(by_group.values())
        # Where nobody is grouped with anybody, all are in one ring.
        self._groups = groups if len(groups) < len(self._rows) else [self._rows.tolist()]

    def compute_s(self, samples: Shares, *, step: int, now: float, faults: Floats) -> Floats:
        """How long each member takes for its samples, being so many times slower by faults."""
        slowdown = self._all.slowdown(step, now=now)[self._rows] * faults
        if not np.array_equal(slowdown, self._slowdown):
            self._slowdown = slowdown
            self._find_optimum()
        return self._workers.compute_s(samples, step=step, slowdown=slowdown, rng=self._rng)

    def exchange_s(self, step: int, *, at_s: float) -> float:
        """How long the members exchange, from a time on: as long as their worst link makes it."""
        always_s = self._scenario.exchange_s * float(self._link_slowdown(step).max())
        if self.network.is_free:
            return always_s
        num_bytes = self._scenario.model_bytes
        return always_s + self.network.group_s(self._groups, at_s, num_bytes=num_bytes)

    def hop_s(self, step: int) -> Floats | None:
        """How long each member's own hops take; None where exchanging takes no time."""
        if self._scenario.exchange_s == 0:
            return None
        noise = np.exp(self._scenario.noise * self._link_rng.standard_normal(len(self._rows)))
        return self._scenario.exchange_s * self._link_slowdown(step) * noise

    def _link_slowdown(self, step: int) -> Floats:
        return self._all.link_slowdown(step)[self._rows]

    def slowdown_of(self, life: Life, step: int, *, now: float) -> float:
        """How many times as long as at the start a worker takes that is no member, as it shows."""
        fault = life.slow_factor if step < life.slow_until else 1.0
        noise = self._scenario.noise * float(self._link_rng.standard_normal())
        slowdown = float(self._all.slowdown(step, now=now)[life.row])
        return slowdown * fault * float(np.exp(noise))

    def note(self, done: Round, *, step_s: float) -> None:
        """A step was done; if it had been done before, that one did not count."""
        self._steps[done.position.step] = SimulatedStep(
            step=done.position.step,
            view=done.view.number,
            step_s=step_s,
            model_s=slowest_s(done.samples, *self._true_costs()),
            optimum_s=self._optimum_s,
        )

    def history(self, steps: int) -> tuple[SimulatedStep, ...]:
        """The first so many steps."""
        return tuple(self._steps[step] for step in range(steps))

    def metrics(self, members: tuple[int, ...]) -> MetricsMeasured:
        """What the `kqv` allocations ask for."""
        return MetricsMeasured(
            workers=members,
            operations_per_s=1 / self._true_costs()[1],
            memory_bytes=self._workers.memory_bytes,
            latency_s=self._workers.latency_s,
        )

    def _true_costs(self) -> tuple[Floats, Floats]:
        workers = self._workers
        return workers.fixed_s * self._slowdown, workers.per_sample_s * self._slowdown

    def _find_optimum(self) -> None:
        fixed, per_sample = self._true_costs()
        shares = balanced(
            self._options.global_batch,
            fixed,
            per_sample,
            minimum=self._options.minimum,
            maximum=self._max_samples,
        )
        self._optimum_s = slowest_s(shares, fixed, per_sample)
