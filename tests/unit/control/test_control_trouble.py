# SPDX-License-Identifier: Apache-2.0
"""When the trouble of a worker is news: not where another process has its core for a moment."""

from __future__ import annotations

import numpy as np
import pytest

from cases import quick_of
from gangline.control import (
    ControlOptions,
    ControlState,
    Say,
    StepMeasured,
    WorkersJoined,
    decide,
)

SHORT_S, LONG_S = 0.016, 0.6


class Told:
    """Two like workers whose steps take as long as a test says; what was said of their computing."""

    def __init__(self, **options: float) -> None:
        options = {"global_batch": 16, "allocation": "equal", **options}  # type: ignore[dict-item]
        self.state = ControlState.begin(ControlOptions(**options))  # type: ignore[arg-type]
        self.now = 0.0
        self.step = 0
        self.said: list[tuple[str, float]] = []
        self._tell(WorkersJoined(workers=(0, 1)))

    def _tell(self, event: StepMeasured | WorkersJoined) -> None:
        self.state, commands = decide(self.state, event, self.now)
        for command in commands:
            if isinstance(command, Say) and command.decision.what.startswith("compute_"):
                self.said.append((command.decision.what, self.now))

    def train(self, compute_s: np.ndarray) -> None:
        for row in compute_s:
            view = self.state.view
            assert view is not None
            self.now += float(row.max())
            event = StepMeasured(
                step=self.step,
                view=view.number,
                workers=view.members,
                samples=np.array(view.shares),
                compute_s=row,
                exchange_s=0.001,
                step_s=float(row.max()),
            )
            self._tell(event)
            self.step += 1


def steady(steps: int, *, step_s: float, rng: np.random.Generator) -> np.ndarray:
    """Steps that vary by a twentieth."""
    return step_s * np.exp(rng.normal(0.0, 0.05, (steps, 2)))


def loaded(steps: int, *, step_s: float, rng: np.random.Generator) -> np.ndarray:
    """The same on a busy machine: again and again somebody else has a core, for up to half a second.

    Meanwhile the worker on it takes two to four times as long.
    """
    times = steady(steps, step_s=step_s, rng=rng)
    for worker in (0, 1):
        step = 0
        while step < steps:
            step += 1 + int(rng.exponential(0.8 / step_s))
            slower = rng.uniform(2.0, 4.0)
            stop = step + 1 + int(rng.uniform(0.05, 0.5) / (slower * step_s))
            times[step:stop, worker] *= slower
            step = stop
    return times


@pytest.mark.parametrize("seed", quick_of(range(4), quick=[0]))
def test_moments_in_which_others_have_the_core_are_no_news(seed: int) -> None:
    job = Told()
    job.train(loaded(3000, step_s=SHORT_S, rng=np.random.default_rng(seed)))
    assert job.said == [], "in a minute, with some 100 such moments"


def test_a_worker_that_stays_slow_is_named_when_it_lasts_and_so_is_its_recovery() -> None:
    job, rng = Told(), np.random.default_rng(5)
    job.train(steady(200, step_s=SHORT_S, rng=rng))
    began_s = job.now
    slow = steady(200, step_s=SHORT_S, rng=rng)
    slow[:, 1] *= 2
    job.train(slow)
    ended_s = job.now
    job.train(steady(200, step_s=SHORT_S, rng=rng))
    (trouble, trouble_s), (recovered, recovered_s) = job.said
    assert (trouble, recovered) == ("compute_trouble", "compute_recovered")
    assert 1.8 < trouble_s - began_s < 2.2
    assert 1.8 < recovered_s - ended_s < 2.2


def test_long_steps_are_judged_as_soon_as_the_detector_judges_them() -> None:
    job, rng = Told(), np.random.default_rng(6)
    job.train(steady(40, step_s=LONG_S, rng=rng))
    slow = steady(5, step_s=LONG_S, rng=rng)
    slow[:, 1] *= 3
    job.train(slow[:2])
    assert job.said == []
    job.train(slow[2:3])
    assert [what for what, _ in job.said] == ["compute_trouble"], "three of the last five steps"
