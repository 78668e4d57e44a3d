# SPDX-License-Identifier: Apache-2.0
"""A simulated run: synchronous steps of simulated workers, controlled by the same `decide`.

    options = ControlOptions(global_batch=256)
    for step in simulate(Scenario.from_toml(path), options=options, steps=1000, seed=0).history:
        ...

Every step begins when the one before it has ended, takes as long as its slowest worker and the
exchange, and is then measured. A view takes effect a fixed number of steps after the one whose
measurement led to it, as workers with prefetching loaders agree on one a little ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from gangline.control import (
    ControlEvent,
    ControlOptions,
    ControlState,
    MetricsMeasured,
    PublishView,
    StepMeasured,
    decide,
)
from gangline.planning.balanced import balanced, slowest_s
from gangline.simulation.clock import VirtualClock
from gangline.simulation.reporting import adopted, ended, started, step_events
from gangline.spec.errors import UsageError
from gangline.spec.event import AnyEvent
from gangline.spec.view import View

if TYPE_CHECKING:
    from gangline.planning.bounds import Floats, Shares
    from gangline.simulation.scenario import Scenario

METRICS_STEPS = 10
"""Steps between two measurements of what the `kqv` allocations need."""

Sink: TypeAlias = Callable[[AnyEvent], None]
"""Takes the events of the run, in order."""


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


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What came of a simulated run."""

    history: tuple[SimulatedStep, ...]
    views: tuple[View, ...]
    """All views, the one that it began with included."""
    wall_s: float
    """Virtual seconds."""

    @property
    def efficiency(self) -> float:
        """The compute-only optimum, as a fraction of what the steps took, over the whole run."""
        return sum(s.optimum_s for s in self.history) / sum(s.step_s for s in self.history)


def simulate(
    scenario: Scenario,
    *,
    options: ControlOptions,
    steps: int,
    seed: int = 0,
    sink: Sink | None = None,
    clock: VirtualClock | None = None,
) -> SimulationResult:
    """Runs `steps` steps of the scenario; `sink` gets the events that a real run would log."""
    if steps < 1:
        raise UsageError(f"a simulation needs at least 1 step, not {steps}")
    run = Simulation(
        scenario,
        options=options,
        steps=steps,
        rng=np.random.default_rng(seed),
        sink=sink or (lambda event: None),
        clock=clock or VirtualClock(),
    )
    return run.run()


class Simulation:
    """Drives `decide` by the virtual clock: the counterpart of coordinator and workers."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        options: ControlOptions,
        steps: int,
        rng: np.random.Generator,
        sink: Sink,
        clock: VirtualClock,
    ) -> None:
        self._scenario = scenario
        self._workers = scenario.simulated_workers()
        self._options = options
        self._steps = steps
        self._rng = rng
        self._sink = sink
        self._clock = clock
        self._state = ControlState.begin(options)
        self._view: View | None = None
        self._shares: Shares = np.zeros(0, dtype=np.int64)
        self._coming: dict[int, View] = {}
        self._history: list[SimulatedStep] = []
        self._views: list[View] = []
        self._slowdown: Floats = np.zeros(0)
        self._optimum_s = 0.0

    def run(self) -> SimulationResult:
        """Runs to the end."""
        nodes = self._scenario.worker_nodes
        self._sink(started(self._clock.now, nodes=nodes))
        self._decide(self._scenario.founders(global_batch=self._options.global_batch), step=0)
        self._clock.schedule(self._clock.now, lambda: self._begin_step(0))
        self._clock.run()
        self._sink(ended(self._clock.now, steps=self._steps))
        return SimulationResult(
            history=tuple(self._history), views=tuple(self._views), wall_s=self._clock.now
        )

    def _begin_step(self, step: int) -> None:
        if step in self._coming:
            self._adopt(self._coming.pop(step), step)
        self._learn_truth(step)
        compute_s = self._workers.compute_s(
            self._shares, step=step, slowdown=self._slowdown, rng=self._rng
        )
        slowest = float(compute_s.max())
        end = self._clock.now + slowest + self._scenario.exchange_s + self._scenario.update_s
        self._clock.schedule(end, lambda: self._end_step(step, compute_s))

    def _end_step(self, step: int, compute_s: Floats) -> None:
        assert self._view is not None
        now, view, scenario = self._clock.now, self._view, self._scenario
        measured = StepMeasured(
            step=step,
            view=view.number,
            workers=view.members,
            samples=self._shares,
            compute_s=compute_s,
        )
        for event in step_events(now, measured, scenario.exchange_s, scenario.update_s):
            self._sink(event)
        self._remember(step, float(compute_s.max()))
        if step % METRICS_STEPS == 0:
            self._decide(self._metrics(view.members), step=step)
        self._decide(measured, step=step)
        if step + 1 < self._steps:
            self._clock.schedule(now, lambda: self._begin_step(step + 1))

    def _decide(self, event: ControlEvent, *, step: int) -> None:
        self._state, commands = decide(self._state, event, self._clock.now)
        for command in commands:
            if isinstance(command, PublishView):
                lag = self._scenario.view_lag_steps if self._views else 0
                self._views.append(command.view)
                self._coming[step + lag] = command.view
            else:
                self._sink(command.decision)

    def _adopt(self, view: View, step: int) -> None:
        self._view = view
        self._shares = np.array(view.shares, dtype=np.int64)
        self._sink(adopted(self._clock.now, view, step=step))

    def _learn_truth(self, step: int) -> None:
        """Looks up the optimum again, if the workers are not as fast as in the step before."""
        slowdown = self._workers.slowdown(step)
        if np.array_equal(slowdown, self._slowdown):
            return
        self._slowdown = slowdown
        fixed, per_sample = self._true_costs()
        shares = balanced(
            self._options.global_batch,
            fixed,
            per_sample,
            minimum=self._options.minimum,
            maximum=self._state.max_samples,
        )
        self._optimum_s = slowest_s(shares, fixed, per_sample)

    def _true_costs(self) -> tuple[Floats, Floats]:
        return self._workers.fixed_s * self._slowdown, self._workers.per_sample_s * self._slowdown

    def _remember(self, step: int, slowest: float) -> None:
        assert self._view is not None
        self._history.append(
            SimulatedStep(
                step=step,
                view=self._view.number,
                step_s=slowest + self._scenario.exchange_s + self._scenario.update_s,
                model_s=slowest_s(self._shares, *self._true_costs()),
                optimum_s=self._optimum_s,
            )
        )

    def _metrics(self, members: tuple[int, ...]) -> MetricsMeasured:
        return MetricsMeasured(
            workers=members,
            operations_per_s=1 / self._true_costs()[1],
            memory_bytes=self._workers.memory_bytes,
            latency_s=self._workers.latency_s,
        )
