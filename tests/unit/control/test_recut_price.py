# SPDX-License-Identifier: Apache-2.0
"""A new cut is made when going without it has cost as much as it costs."""

from __future__ import annotations

import numpy as np

from gangline.control import ControlOptions, ControlState, decide
from gangline.control.commands import PublishView
from gangline.control.inputs import StepMeasured, WorkersJoined
from gangline.control.shares.price import RecutPrice

SPEEDS = np.array([1.0, 0.5, 0.2])


class Cluster:
    """Three workers without noise, whose first step with other shares takes `extra_s` longer."""

    def __init__(self, extra_s):
        self.extra_s = extra_s
        self.state = ControlState.begin(ControlOptions(global_batch=512, may_exclude=False))
        self.step, self.shares = 0, ()
        self.cuts = []
        """By step, the gain of each new cut, as predicted."""
        self._send(WorkersJoined(workers=(0, 1, 2)))

    def _send(self, event):
        self.state, commands = decide(self.state, event, float(self.step))
        return [one.view for one in commands if isinstance(one, PublishView)]

    def run(self, steps, speeds=SPEEDS):
        for _ in range(steps):
            view = self.state.view
            extra_s = self.extra_s if self.shares and view.shares != self.shares else 0.0
            self.shares = view.shares
            samples = np.array(view.shares)
            compute_s = extra_s + (0.004 + 0.0001 * samples) / speeds
            published = self._send(
                StepMeasured(
                    step=self.step,
                    view=view.number,
                    workers=view.members,
                    samples=samples,
                    compute_s=compute_s,
                )
            )
            if published:
                self.cuts.append(self.step)
            self.step += 1
        return self


def test_where_a_new_cut_costs_nothing_a_slower_worker_is_followed_at_once():
    cluster = Cluster(0.0).run(60)
    cluster.cuts.clear()
    cluster.run(10, SPEEDS * [1, 0.8, 1])
    assert cluster.cuts[0] <= 64
    assert cluster.state.price.price_s == 0


def test_where_it_costs_many_steps_small_gains_are_put_off_until_they_have_cost_as_much():
    cluster = Cluster(1.0).run(60)
    assert 0.9 < cluster.state.price.price_s < 1.1
    cluster.cuts.clear()
    cluster.run(400, SPEEDS * [1, 0.8, 1])
    free = Cluster(0.0).run(60)
    free.cuts.clear()
    free.run(400, SPEEDS * [1, 0.8, 1])
    assert cluster.cuts, "it is put off, not given up"
    assert cluster.cuts[0] > free.cuts[0] + 50
    assert len(cluster.cuts) <= len(free.cuts)


def test_a_great_change_is_followed_soon_even_so():
    cluster = Cluster(1.0).run(60)
    cluster.cuts.clear()
    cluster.run(60, SPEEDS * [0.1, 1, 1])
    assert cluster.cuts
    assert cluster.cuts[0] < 80


def test_one_pause_is_no_price():
    once = RecutPrice().cut_anew(1).measured(1, step_s=3.0, predicted_s=0.1)
    assert once.price_s == 0
    twice = once.cut_anew(2).measured(2, step_s=0.1, predicted_s=0.1)
    thrice = twice.cut_anew(3).measured(3, step_s=0.1, predicted_s=0.1)
    assert thrice.price_s == 0


def test_only_the_first_step_of_a_view_that_was_cut_anew_is_looked_at():
    price = RecutPrice().cut_anew(4)
    assert price.measured(3, step_s=9.0, predicted_s=0.1) == price
    seen = price.measured(4, step_s=1.1, predicted_s=0.1)
    assert seen.excesses_s == (1.0,)
    assert seen.measured(4, step_s=9.0, predicted_s=0.1) == seen


def test_what_is_within_the_length_of_a_step_is_noise():
    price = RecutPrice()
    for view in (1, 2, 3):
        price = price.cut_anew(view).measured(view, step_s=0.19, predicted_s=0.1)
    assert price.price_s == 0
