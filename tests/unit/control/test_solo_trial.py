# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU is better off alone is tried where its script sets the pace."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.control import ControlOptions, ControlState, decide
from gangline.control.commands import PublishView, Say, TakeBack
from gangline.control.inputs import SpareMeasured, StepMeasured, WorkersJoined
from gangline.control.stragglers.solo import REST_S, Solo

WORKERS = (4, 5, 6)
BATCH = 512


class Gpus:
    """Three like GPUs whose steps take what they are told to, in company and alone."""

    def __init__(self, *, company_s=0.05, alone_s=0.04, waited=0.05, **options):
        self.company_s, self.alone_s, self.waited = company_s, alone_s, waited
        self.state = ControlState.begin(ControlOptions(global_batch=BATCH, **options))
        self.now, self.step, self.said, self.called = 0.0, 0, [], []
        self.send(WorkersJoined(workers=WORKERS))

    def send(self, event):
        self.state, commands = decide(self.state, event, self.now)
        self.said += [one.decision for one in commands if isinstance(one, Say)]
        self.called += [one.worker for one in commands if isinstance(one, TakeBack)]
        return [one.view for one in commands if isinstance(one, PublishView)]

    @property
    def members(self):
        return self.state.members

    def run(self, steps, *, until=lambda: False):
        for _ in range(steps):
            step_s = self.alone_s if len(self.members) == 1 else self.company_s
            self.now += step_s
            samples = np.array(self.state.view.shares)
            compute_s = np.full(len(samples), 0.8 * step_s)
            has_gpu = self.waited is not None and len(samples) > 1
            self.send(
                StepMeasured(
                    step=self.step,
                    view=self.state.view.number,
                    workers=self.members,
                    samples=samples,
                    compute_s=compute_s,
                    exchange_s=0.0,
                    step_s=step_s,
                    waited_s=self.waited * compute_s if has_gpu else None,
                )
            )
            self.step += 1
            if until():
                break
        return self

    def alone(self):
        return self.run(40, until=lambda: len(self.members) == 1)

    def reasons(self, what):
        return [one.reason for one in self.said if one.what == what]


def test_a_gpu_that_waits_for_its_script_is_tried_alone_and_stays_so_where_steps_are_shorter():
    gpus = Gpus().alone()
    assert len(gpus.members) == 1
    assert "its script sets the pace" in gpus.reasons("exclude")[0]
    gpus.run(200)
    assert len(gpus.members) == 1
    (kept,) = gpus.reasons("alone")
    assert "goes on alone: a step takes 0.04 s alone and 0.05 s with all" in kept
    assert {spare.trouble for spare in gpus.state.oversight.spares} == {"alone"}


def test_where_steps_are_not_shorter_the_others_are_called_when_they_next_show_themselves():
    gpus = Gpus(company_s=0.05, alone_s=0.06).alone()
    gpus.run(20)
    (said,) = gpus.reasons("alone")
    assert "the others are taken back: a step takes 0.06 s alone and 0.05 s with all" in said
    for spare in gpus.state.oversight.spares:
        gpus.send(SpareMeasured(worker=spare.worker, slowdown=1.0))
    assert sorted(gpus.called) == sorted(set(WORKERS) - set(gpus.members))


def test_a_trial_that_failed_is_not_made_again_for_a_long_while():
    gpus = Gpus(company_s=0.05, alone_s=0.06).alone()
    gpus.run(20)
    gpus.send(WorkersJoined(workers=tuple(sorted(set(WORKERS) - set(gpus.members)))))
    gpus.run(300)
    assert len(gpus.members) == 3
    assert len(gpus.reasons("alone")) == 1
    gpus.now += REST_S
    gpus.run(20)
    assert len(gpus.members) == 1
    assert len(gpus.reasons("alone")) == 2
    assert gpus.state.solo.rest_s == 4 * REST_S, "each time that it fails, after twice as long"


@pytest.mark.parametrize("waited", [0.6, None])
def test_a_gpu_that_is_waited_for_and_a_cpu_are_not_tried(waited):
    gpus = Gpus(waited=waited).run(300)
    assert len(gpus.members) == 3


@pytest.mark.parametrize("options", [{"may_exclude": False}, {"allocation": "equal"}])
def test_nobody_is_tried_alone_where_all_shall_take_part(options):
    assert len(Gpus(**options).run(100).members) == 3


def test_a_member_that_cannot_hold_the_batch_is_not_tried():
    gpus = Gpus()
    gpus.state = ControlState.begin(ControlOptions(global_batch=BATCH))
    gpus.send(WorkersJoined(workers=WORKERS, max_samples=(BATCH // 2,) * 3))
    assert len(gpus.run(100).members) == 3


def test_those_who_are_left_out_are_not_called_back_for_what_is_only_predicted():
    """By their own speeds alone, steps would be a third as long with all of them."""
    gpus = Gpus().alone()
    gpus.run(20)
    for _ in range(8):
        gpus.now += 1.0
        gpus.run(5)
        for spare in gpus.state.oversight.spares:
            gpus.send(SpareMeasured(worker=spare.worker, slowdown=1.0))
    assert gpus.called == []


def test_only_steps_of_one_view_are_compared():
    solo = Solo()
    for _ in range(5):
        solo = solo.seen(0, 0.1, 0.0)
    assert solo.seen(1, 0.1, 0.0).step_s == ()
