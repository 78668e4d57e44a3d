# SPDX-License-Identifier: Apache-2.0
"""Who joins a running job with another model is refused by name; the others go on."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from live_jobs import LiveJob, assert_nothing_lost, report


def test_a_joiner_with_another_model_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    setup = Setup(epochs=12, wait={40: "the stranger is gone"})
    with LiveJob(tmp_path, setup) as job:
        job.await_step(10)
        job.join(Setup(loop="wide", epochs=12)).join(30)
        job.say("the stranger is gone")
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0, 1], report(outcome)
    assert (
        "worker 2 differs from the members in parameters: those with the hash"
        in (outcome.outputs[2])
    )
    assert_nothing_lost(outcome, setup, finishers=[0, 1])
