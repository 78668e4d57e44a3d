# SPDX-License-Identifier: Apache-2.0
"""A simulated run of workers in step, led by the coordinator of a real run.

    options = ControlOptions(global_batch=256)
    for step in simulate(Scenario.from_toml(path), options=options, steps=1000, seed=0).history:
        ...

Every step begins when the one before it has ended, takes as long as its slowest worker and the
exchange, and is then measured. A view takes effect a fixed number of steps after the one whose
measurement led to it, as workers with prefetching loaders agree on one a little ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.simulation.course import Course, Recovery
from gangline.simulation.engine.field import Extent
from gangline.simulation.engine.job import SimulatedJob, ready_for
from gangline.simulation.yardstick import SimulatedStep, Yardstick
from gangline.spec.errors import UsageError
from gangline.spec.faults import Fault
from gangline.spec.view import View

if TYPE_CHECKING:
    from gangline.control import ControlOptions
    from gangline.simulation.scenario import Scenario
    from gangline.simulation.world import Sink


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What came of a simulated run."""

    history: tuple[SimulatedStep, ...]
    """The steps that count, in their order."""
    views: tuple[View, ...]
    """All views, the one that it began with included."""
    wall_s: float
    """Virtual seconds."""
    fired: tuple[Fault, ...] = ()
    """The faults that happened, in their order."""
    unreached: tuple[Fault, ...] = ()
    """The faults that the run did not come to."""
    recoveries: tuple[Recovery, ...] = ()
    link_bytes: float = 0.0
    """What was sent over limited links."""
    problem: str | None = None
    """Why the run ended before its last step; None if it did not."""

    @property
    def efficiency(self) -> float:
        """The compute-only optimum, as a fraction of what the steps took, over the whole run."""
        took_s = sum(step.step_s for step in self.history)
        return sum(step.optimum_s for step in self.history) / took_s if took_s else 0.0


def simulate(
    scenario: Scenario,
    *,
    options: ControlOptions,
    steps: int,
    seed: int = 0,
    sink: Sink | None = None,
    course: Course | None = None,
) -> SimulationResult:
    """Runs `steps` steps of the scenario; `sink` gets the events that a real run would log."""
    if steps < 1:
        raise UsageError(f"a simulation needs at least 1 step, not {steps}")
    course = course or Course()
    course.faults.check(workers=len(scenario.worker_nodes))
    yardstick = Yardstick(scenario, options=options)
    job = SimulatedJob(
        scenario,
        ready_for(scenario, options, structure=options.structure),
        options=options,
        course=course,
        extent=Extent(steps=steps),
        seed=seed,
        sink=sink or (lambda event: None),
        yardstick=yardstick,
    )
    job.run()
    field = job.field
    return SimulationResult(
        history=yardstick.history(field.position.step),
        views=tuple(job.board.views),
        wall_s=job.now,
        fired=tuple(field.strikes.fired),
        unreached=field.strikes.unreached,
        recoveries=tuple(field.recoveries),
        link_bytes=field.network.crossed_bytes,
        problem=job.problem,
    )
