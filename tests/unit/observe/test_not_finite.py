# SPDX-License-Identifier: Apache-2.0
"""A run whose gradients were no numbers says so at its end."""

from __future__ import annotations

from synthetic_run import step_done

from gangline.cli.run.end import summary_lines
from gangline.observe.metrics import summarize
from gangline.spec.event import GradientNotFinite


def test_gradients_that_were_no_numbers_are_named_at_the_end() -> None:
    events = [step_done(step=0), step_done(step=1)]
    assert not any("not a number" in line for line in summary_lines(summarize(events)))
    events += [GradientNotFinite(t=5.0, worker=0, step=step) for step in (1, 0)]
    lines = summary_lines(summarize(events))
    (said,) = [line for line in lines if "not a number" in line]
    assert said.startswith("warning: 2 times a worker's part of the gradient was infinite or not")
