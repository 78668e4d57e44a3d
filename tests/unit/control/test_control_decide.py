# SPDX-License-Identifier: Apache-2.0
"""`decide`: events in, commands out."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.control import (
    ControlOptions,
    ControlState,
    MetricsMeasured,
    PublishView,
    Say,
    StepMeasured,
    WorkersJoined,
    WorkersLost,
    decide,
)
from gangline.planning.allocation.policies import balanced, slowest_s
from gangline.spec.errors import UsageError

SPEEDS = np.array([1.0, 0.5, 0.2, 0.1])
WORKERS = (7, 3, 5, 9)


class Run:
    """Feeds events to a bare state, and keeps the commands."""

    def __init__(self, workers=WORKERS, *, joined=None, **options):
        self.state = ControlState.begin(ControlOptions(**{"global_batch": 256, **options}))
        self.step = 0
        self.commands = []
        self.send(WorkersJoined(workers=workers, **(joined or {})))

    def send(self, event):
        self.state, commands = decide(self.state, event, float(self.step))
        self.commands += commands
        return commands

    @property
    def view(self):
        return self.state.view

    @property
    def published(self):
        return [command.view for command in self.commands if isinstance(command, PublishView)]

    def said(self, what):
        said = [command.decision for command in self.commands if isinstance(command, Say)]
        return [decision for decision in said if decision.what == what]

    def measure(self, steps=1, *, speeds=SPEEDS, view=None, factor=1.0):
        """Steps in the newest view, at once adopted, of workers without noise."""
        for _ in range(steps):
            shares = np.array(self.view.shares)
            self.send(
                StepMeasured(
                    step=self.step,
                    view=self.view.number if view is None else view,
                    workers=self.view.members,
                    samples=shares,
                    compute_s=factor * (0.004 + 0.001 * shares) / speeds,
                )
            )
            self.step += 1
        return self


def test_founders_are_cut_equally():
    run = Run()
    assert run.view.number == 0
    assert run.view.members == WORKERS
    assert run.view.shares == (64, 64, 64, 64)
    assert run.view.reason == "4 workers joined, taken to be alike; 4 members"
    say, publish = run.commands
    assert isinstance(say, Say)
    assert say.decision.numbers == {
        "view": 0,
        "joined": 4,
        "members": 4,
        **{f"share_{worker}": 64 for worker in WORKERS},
    }
    assert publish == PublishView(view=run.view)


def test_founders_are_cut_by_given_speeds():
    run = Run(joined={"speeds": tuple(SPEEDS)})
    assert run.view.shares == (143, 71, 28, 14)
    assert "as fast as given" in run.view.reason


def test_ceilings_hold_from_the_start_and_in_every_cut():
    run = Run(joined={"max_samples": (100, 256, 256, 256)})
    assert run.view.shares == (64, 64, 64, 64)
    run.measure(20)
    assert run.view.number > 0
    assert run.view.shares[0] == 100
    assert sum(run.view.shares) == 256


def test_a_cold_start_is_cut_anew_after_five_steps_with_the_reason():
    run = Run().measure(4)
    assert run.view.number == 0
    run.measure(1)
    assert run.view.number == 1
    assert run.view.shares[0] > 100 > run.view.shares[3] * 5
    assert run.view.reason.startswith("step 4: worker 9 needs 0.68 s for its 64 samples; cut anew")
    numbers = run.said("publish_view")[-1].numbers
    assert numbers["step"] == 4
    assert numbers["present_s"] == pytest.approx(0.68)
    assert 0 < numbers["least_gain"] < numbers["gain"] < 1
    assert numbers["per_sample_s_9"] > numbers["per_sample_s_7"] > 0
    assert run.said("publish_view")[-1].t == 4.0


def test_a_cold_start_comes_to_the_optimum_within_a_few_cuts():
    run = Run().measure(40)
    fixed, per_sample = 0.004 / SPEEDS, 0.001 / SPEEDS
    optimum_s = slowest_s(balanced(256, fixed, per_sample), fixed, per_sample)
    assert slowest_s(run.view.shares, fixed, per_sample) < 1.04 * optimum_s
    assert len(run.published) <= 4


def test_no_second_view_is_published_while_the_first_is_not_adopted():
    run = Run().measure(5)
    assert run.view.number == 1
    run.measure(50, view=0, factor=3.0)
    assert run.view.number == 1


def test_older_views_teach_the_speeds_too():
    run = Run().measure(5)
    seen = run.state.speeds.observed.copy()
    old = StepMeasured(
        step=5,
        view=0,
        workers=WORKERS,
        samples=np.full(4, 64),
        compute_s=0.068 / SPEEDS,
    )
    run.send(old)
    assert (run.state.speeds.observed == seen + 1).all()
    assert run.state.steps_in_view == 0


def test_measurements_are_found_by_worker_when_their_order_is_another():
    straight, mixed = Run(), Run()
    order = [2, 0, 3, 1]
    for step in range(5):
        times = 0.068 / SPEEDS
        straight.send(
            StepMeasured(
                step=step, view=0, workers=WORKERS, samples=np.full(4, 64), compute_s=times
            )
        )
        mixed.send(
            StepMeasured(
                step=step,
                view=0,
                workers=(*(WORKERS[i] for i in order), 99),
                samples=np.full(5, 64),
                compute_s=np.append(times[order], 5.0),
            )
        )
    assert straight.view.number == 1
    assert mixed.view == straight.view


def test_nothing_is_cut_while_a_worker_is_unknown():
    run = Run()
    for step in range(20):
        times = 0.068 / SPEEDS
        times[2] = np.nan
        run.send(
            StepMeasured(
                step=step, view=0, workers=WORKERS, samples=np.full(4, 64), compute_s=times
            )
        )
    assert run.view.number == 0


def test_a_throttled_worker_is_said_and_cut_within_three_steps():
    run = Run().measure(40)
    number = run.view.number
    slow = SPEEDS * [1, 1 / 3, 1, 1]
    run.measure(3, speeds=slow)
    assert run.view.number == number + 1
    (said,) = run.said("speed_changed")
    assert said.reason == "step 42: worker 3 takes 3.00 times as long as before"
    assert said.numbers["worker"] == 3
    assert said.numbers["factor"] == pytest.approx(3, rel=0.02)


def test_several_changes_are_said_in_one_sentence():
    run = Run().measure(40)
    run.measure(3, speeds=SPEEDS * [1 / 2, 1 / 4, 1, 1])
    (said,) = run.said("speed_changed")
    assert "worker 3 takes 4." in said.reason
    assert said.reason.endswith("and 1 more changed")
    assert said.numbers["changed"] == 2


def test_all_being_slower_alike_changes_no_cut():
    run = Run().measure(100)
    view = run.view
    run.measure(100, factor=3.0)
    assert run.view == view


@pytest.mark.parametrize("allocation", ["equal", "fixed"])
def test_the_first_cut_stays_when_the_policy_does_not_measure(allocation):
    run = Run(allocation=allocation, joined={"speeds": (4.0, 2.0, 1.0, 1.0)}).measure(300)
    assert len(run.published) == 1
    assert run.view.shares == ((64,) * 4 if allocation == "equal" else (128, 64, 32, 32))


def test_random_is_drawn_anew_every_recut_steps():
    run = Run(allocation="random", recut_steps=10).measure(35)
    assert [view.number for view in run.published] == [0, 1, 2, 3]
    assert len({view.shares for view in run.published}) == 4
    assert all(sum(view.shares) == 256 for view in run.published)
    assert "random cut, made anew every 10 steps" in run.view.reason
    again = Run(allocation="random", recut_steps=10).measure(35)
    other = Run(allocation="random", recut_steps=10, seed=1).measure(35)
    assert again.published == run.published
    assert other.published != run.published


def metrics(workers=WORKERS, latency=(1e-3,) * 4):
    return MetricsMeasured(
        workers=workers,
        operations_per_s=SPEEDS * 1e9,
        memory_bytes=np.full(4, 1e9),
        latency_s=np.array(latency),
    )


@pytest.mark.parametrize(
    ("allocation", "shares"), [("kqv", (49, 43, 39, 38)), ("kqv-normalised", (74, 65, 59, 58))]
)
def test_kqv_is_cut_as_soon_as_there_are_metrics(allocation, shares):
    run = Run(allocation=allocation).measure(150)
    assert run.view.shares == (64, 64, 64, 64)
    run.send(metrics())
    run.measure(1)
    assert run.view.shares == shares
    run.measure(250)
    assert len(run.published) == 2  # the same metrics give the same cut, which is not news
    run.send(metrics(latency=(1e-3, 5e-3, 1e-3, 1e-3)))
    run.measure(100)
    assert len(run.published) == 3


def test_metrics_are_found_by_worker_and_incomplete_ones_left_out():
    straight, mixed, partial = (Run(allocation="kqv") for _ in range(3))
    straight.send(metrics())
    event = metrics()
    order = [3, 1, 0, 2]
    mixed.send(
        MetricsMeasured(
            workers=tuple(WORKERS[i] for i in order),
            operations_per_s=event.operations_per_s[order],
            memory_bytes=event.memory_bytes[order],
            latency_s=event.latency_s[order],
        )
    )
    partial.send(metrics(workers=(7, 3, 5, 4)))
    for run in (straight, mixed, partial):
        run.measure(1)
    assert mixed.view == straight.view
    assert partial.view.number == 0


def test_a_later_joiner_gets_a_share_like_the_median_and_is_then_measured():
    run = Run(joined={"max_samples": (256,) * 4}).measure(30)
    run.send(WorkersJoined(workers=(1,)))
    assert run.view.members == (*WORKERS, 1)
    assert sum(run.view.shares) == 256
    assert run.view.shares[4] > 0
    assert "worker 1 joined" in run.view.reason
    run.measure(30, speeds=np.append(SPEEDS, 1.0))
    times = (0.004 + 0.001 * np.array(run.view.shares)) / np.append(SPEEDS, 1.0)
    assert times.max() / times.mean() < 1.06


def test_those_that_are_left_go_on_when_a_worker_is_lost():
    run = Run().measure(30)
    before = run.view
    say, publish = run.send(WorkersLost(workers=(3,), reason="worker 3 was killed"))
    assert publish.is_recovery
    assert run.view.members == (7, 5, 9)
    assert run.view.number == before.number + 1
    assert run.view.group == before.group + 1
    assert sum(run.view.shares) == 256
    assert run.view.reason == "worker 3 was killed; 3 of 4 members go on"
    assert say.decision.numbers["lost"] == 1
    times = (0.004 + 0.001 * np.array(run.view.shares)) / SPEEDS[[0, 2, 3]]
    assert times.max() / times.mean() < 1.1
    run.measure(20, speeds=SPEEDS[[0, 2, 3]])
    assert run.state.speeds.observed.min() > 20


def test_nothing_is_decided_when_all_are_lost():
    run = Run()
    assert run.send(WorkersLost(workers=WORKERS, reason="the power failed")) == []
    assert run.view.members == WORKERS


def test_a_member_that_never_reported_is_taken_for_an_average_one_when_others_are_lost():
    run = Run()
    times = 0.068 / SPEEDS
    times[3] = np.nan
    for step in range(6):
        run.send(
            StepMeasured(
                step=step, view=0, workers=WORKERS, samples=np.full(4, 64), compute_s=times
            )
        )
    run.send(WorkersLost(workers=(7,), reason="worker 7 left"))
    shares = dict(zip(run.view.members, run.view.shares, strict=True))
    assert shares[3] > shares[9] > shares[5]


def test_many_workers_are_decided_on_without_a_number_each():
    speeds = np.linspace(0.1, 1, 40)
    run = Run(tuple(range(40)), global_batch=64 * 40).measure(10, speeds=speeds)
    numbers = run.said("publish_view")[-1].numbers
    assert run.view.number > 0
    assert not any(name.startswith(("share_", "fixed_s_")) for name in numbers)


def test_the_same_events_give_the_same_commands():
    first, second = (Run().measure(20).measure(20, speeds=SPEEDS[::-1]) for _ in range(2))
    assert first.commands == second.commands
    assert len(first.commands) > 4


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (WorkersJoined(workers=()), "at least one at a time"),
        (WorkersJoined(workers=(1, 1)), "workers join once each"),
        (WorkersJoined(workers=(3, 1)), r"already members of view 0: \[3\]"),
        (WorkersJoined(workers=(1,), speeds=(1.0, 2.0)), "1 workers need 1 speeds, all above 0"),
        (WorkersJoined(workers=(1,), max_samples=(0,)), "1 workers need 1 max_samples"),
    ],
)
def test_the_message_says_why_when_workers_cannot_join(event, message):
    with pytest.raises(UsageError, match=message):
        Run().send(event)


def test_a_step_before_anybody_joined_is_refused():
    state = ControlState.begin(ControlOptions(global_batch=8))
    step = StepMeasured(
        step=0, view=0, workers=(), samples=np.zeros(0, dtype=np.int64), compute_s=np.zeros(0)
    )
    assert state.members == ()
    with pytest.raises(UsageError, match="step 0 was measured before any worker joined"):
        decide(state, step, 0.0)
