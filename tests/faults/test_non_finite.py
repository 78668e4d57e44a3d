# SPDX-License-Identifier: Apache-2.0
"""A worker computes something that is no number: it is named, and put out where that is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import faultless, run_with

from gangline.spec.event import GradientNotFinite


def test_the_others_go_on_without_a_worker_whose_gradient_is_not_finite(tmp_path: Path) -> None:
    setup = Setup(broken=(1, 3), non_finite="evict")
    outcome = run_with(tmp_path, setup, [])
    assert outcome.exit_codes == [0, 1, 0], outcome.outputs
    assert "the gradient of worker 1 is not finite at step 3" in outcome.outputs[1]
    (event,) = outcome.of_kind(GradientNotFinite)
    assert (event.worker, event.step) == (1, 3)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    assert 1 not in {worker for w in outcome.ledger.windows if w.step >= 3 for worker in w.samples}
    alone = faultless((setup.loop, setup.samples, setup.batch, setup.epochs, setup.accumulate))
    for result in outcome.results.values():
        for name, value in alone["state"].items():
            torch.testing.assert_close(result["state"][name], value, rtol=1e-9, atol=1e-9)


def test_a_worker_whose_gradient_is_not_finite_is_named_when_nobody_is_put_out(
    tmp_path: Path,
) -> None:
    outcome = run_with(tmp_path, Setup(broken=(2, 5)), [])
    assert outcome.exit_codes == [0, 0, 0], outcome.outputs
    events = outcome.of_kind(GradientNotFinite)
    # From the step after on the parameters are no numbers either, everywhere, as in one process.
    assert [event.worker for event in events if event.step == 5] == [2]
    assert {event.worker for event in events if event.step == 6} == {0, 1, 2}
