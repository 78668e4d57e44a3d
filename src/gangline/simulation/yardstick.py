# SPDX-License-Identifier: Apache-2.0
"""What is true of the members, though nobody in the run knows it: what were best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.planning.allocation.balanced import balanced, slowest_s

if TYPE_CHECKING:
    from gangline.control import ControlOptions
    from gangline.planning.allocation.bounds import Floats, Shares
    from gangline.simulation.engine.rounds import Round
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
    """The steps of workers that train in step, measured by the members' true costs."""

    def __init__(self, scenario: Scenario, *, options: ControlOptions) -> None:
        self._workers = scenario.simulated_workers()
        ceilings = scenario.ceilings(global_batch=options.global_batch)
        self._max_samples = np.array(ceilings, dtype=np.int64)
        self._options = options
        self._known: tuple[Shares, Floats] = (np.zeros(0, dtype=np.int64), np.zeros(0))
        """Whose best shares were found last, and how much slower they were than at first."""
        self._optimum_s = 0.0
        self._steps: dict[int, SimulatedStep] = {}

    def note(self, done: Round, *, rows: Shares, step_s: float) -> None:
        """A step was done; if it had been done before, that one did not count."""
        fixed_s = self._workers.fixed_s[rows] * done.slowdown
        per_sample_s = self._workers.per_sample_s[rows] * done.slowdown
        known_rows, known_slowdown = self._known
        if not (np.array_equal(rows, known_rows) and np.array_equal(done.slowdown, known_slowdown)):
            self._known = rows, done.slowdown
            shares = balanced(
                self._options.global_batch,
                fixed_s,
                per_sample_s,
                minimum=self._options.minimum,
                maximum=self._max_samples[rows],
            )
            self._optimum_s = slowest_s(shares, fixed_s, per_sample_s)
        self._steps[done.position.step] = SimulatedStep(
            step=done.position.step,
            view=done.view.number,
            step_s=step_s,
            model_s=slowest_s(done.samples, fixed_s, per_sample_s),
            optimum_s=self._optimum_s,
        )

    def history(self, steps: int) -> tuple[SimulatedStep, ...]:
        """The first so many steps."""
        return tuple(self._steps[step] for step in range(steps))
