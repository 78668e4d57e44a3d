# SPDX-License-Identifier: Apache-2.0
"""The runtime manager: told apart, excluded where it helps, taken back where that helps."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.control import (
    ControlOptions,
    ControlState,
    KeepPlan,
    LowerRate,
    PublishView,
    Say,
    SpareMeasured,
    StepMeasured,
    StepWeighed,
    TakeBack,
    WorkersJoined,
    WorkersLeft,
    decide,
)
from gangline.control.stragglers.manager import PATIENCE
from gangline.spec.errors import UsageError
from gangline.spec.outlook import Outlook
from gangline.spec.profile import ClusterProfile, NodeProfile
from gangline.spec.view import Whole
from gangline.spec.workload import Workload

FIXED_S, PER_SAMPLE_S = 0.02, 0.01


class Run:
    """Four workers without noise, told to a bare state; one second passes per step."""

    def __init__(self, count=4, **options):
        options = {"global_batch": 64, "exclusion_cost_s": 1.0, **options}
        self.state = ControlState.begin(ControlOptions(**options))
        self.step, self.now = 0, 0.0
        self.slowdown, self.hop_s, self.late_s = (
            np.ones(count),
            np.full(count, 0.01),
            np.zeros(count),
        )
        self.exchange_s = None
        """What an exchange takes, where that is not what the slowest hop says."""
        self.commands = []
        self.send(WorkersJoined(workers=tuple(range(count))))

    def send(self, event):
        self.state, commands = decide(self.state, event, self.now)
        self.commands += commands
        return commands

    def measure(self, steps=1):
        for _ in range(steps):
            workers = np.array(self.state.members)
            shares = np.array(self.state.view.shares)
            compute_s = (FIXED_S + PER_SAMPLE_S * shares) * self.slowdown[workers]
            exchange_s = float(self.hop_s[workers].max()) if len(workers) > 1 else 0.0
            if self.exchange_s is not None and len(workers) == len(self.hop_s):
                exchange_s = self.exchange_s
            self.send(
                StepMeasured(
                    step=self.step,
                    view=self.state.view.number,
                    workers=self.state.members,
                    samples=shares,
                    compute_s=compute_s,
                    exchange_s=exchange_s,
                    hop_s=self.hop_s[workers],
                    delay_s=self.late_s[workers],
                    step_s=float(compute_s.max()) + exchange_s,
                )
            )
            self.step += 1
            self.now += 1.0

    def show(self, worker, slowdown, times=1):
        for _ in range(times):
            self.now += 1.0
            self.send(SpareMeasured(worker=worker, slowdown=slowdown))

    def said(self, what):
        said = [command.decision for command in self.commands if isinstance(command, Say)]
        return [decision for decision in said if decision.what == what]

    def of_kind(self, kind):
        return [command for command in self.commands if isinstance(command, kind)]


def excluded(**options):
    """A run whose worker 3 became thirty times slower, and was excluded."""
    run = Run(**options)
    run.measure(20)
    run.slowdown[3] = 30
    run.measure(40)
    assert run.state.members == (0, 1, 2)
    return run


def test_a_slow_worker_is_excluded_with_its_reason_when_even_its_least_share_is_too_slow():
    run = excluded()
    (trouble,) = run.said("compute_trouble")
    assert "worker 3 takes" in trouble.reason
    assert trouble.numbers["factor"] > 20
    (decision,) = run.said("exclude")
    assert "worker 3 needs" in decision.reason
    assert "the least share that it can have" in decision.reason
    assert decision.numbers["without_s"] < decision.numbers["with_s"]
    assert decision.numbers["lost_s"] >= 1.0
    assert decision.numbers["lost_steps"] >= PATIENCE
    view = run.of_kind(PublishView)[-1]
    assert view.is_recovery, "nobody waits for its present step"
    assert sum(view.view.shares) == 64
    assert [spare.worker for spare in run.state.oversight.spares] == [3]


def test_the_plan_is_of_those_that_train_when_one_is_excluded():
    nodes = tuple(NodeProfile(name=f"n{i}", per_sample_s=1.0) for i in range(4))
    workload = Workload(global_batch=64, gradient_bytes=4e6)
    run = excluded(outlook=Outlook(workload=workload, profile=ClusterProfile(nodes=nodes)))
    run.measure(60)
    first, *_, last = [command.made for command in run.of_kind(KeepPlan)]
    assert (first.chosen, len(first.nodes)) == ("flat ring, all nodes", 4)
    assert (last.chosen, last.nodes) == ("flat ring, 3 of 4 nodes", ["n0", "n1", "n2"])
    assert last.reasons[-1] == "left out, because a step is shorter without: n3"
    taken_s = FIXED_S + PER_SAMPLE_S * max(run.state.view.shares) + 0.01
    assert last.step_s == pytest.approx(taken_s, rel=0.1)


def test_a_slow_worker_stays_when_the_others_are_no_faster_without_it():
    run = Run(global_batch=1024)
    run.measure(20)
    run.slowdown[3] = 10
    run.measure(100)
    assert run.state.members == (0, 1, 2, 3)
    assert run.said("exclude") == []
    assert 0 < run.state.view.shares[3] < 64, "its share shrinks instead"


def test_nobody_is_excluded_when_waiting_has_not_cost_enough():
    run = Run(exclusion_cost_s=1e6)
    run.measure(20)
    run.slowdown[3] = 30
    run.measure(60)
    assert run.state.members == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "options", [{"may_exclude": False}, {"allocation": "equal"}, {"allocation": "fixed"}]
)
def test_nobody_is_excluded_when_it_may_not_be(options):
    run = Run(**options)
    run.measure(20)
    run.slowdown[3] = 30
    run.measure(80)
    assert run.state.members == (0, 1, 2, 3)


def test_a_worker_that_is_slow_for_ten_steps_is_not_excluded():
    run = Run(exclusion_cost_s=0.0)
    run.measure(20)
    run.slowdown[3] = 30
    run.measure(10)
    run.slowdown[3] = 1
    run.measure(40)
    assert run.said("exclude") == []
    assert len(run.said("compute_recovered")) == 1
    assert run.state.view.shares[3] >= 14, "its share is back"


def test_a_worker_that_was_slow_from_the_start_is_not_waited_for():
    run = Run()
    run.slowdown[3] = 30
    run.measure(16)
    assert run.state.members == (0, 1, 2)
    assert run.said("compute_trouble") == [], "it is as slow as it always was"


def test_the_last_worker_always_stays():
    run = Run(count=3)
    run.measure(20)
    run.slowdown[1:] = (30, 40)
    run.measure(120)
    assert run.state.members == (0,)
    alone = Run(count=1)
    alone.measure(60)
    assert alone.state.members == (0,)


# --- exchanging ----------------------------------------------------------------------------------


def costly(exchange_s, *, count=3, steps=9, **options):
    """A run of workers whose exchange takes so long, after its first steps."""
    run = Run(count=count, **options)
    run.hop_s[:] = exchange_s
    run.measure(steps)
    return run


def test_the_fastest_goes_on_alone_when_exchanging_costs_more_than_the_others_save():
    run = costly(0.0)
    run.slowdown[:] = (1, 2, 4)
    run.measure(20)
    assert run.state.members == (0, 1, 2), "together they are faster"
    run = Run(count=3)
    run.slowdown[:], run.hop_s[:] = (1, 2, 4), 2.0
    run.measure(12)
    assert run.state.members == (0,)
    decision, other = run.said("exclude")
    assert (decision.numbers["worker"], other.numbers["worker"]) == (1, 2)
    assert "3 members exchange for 2 s of each step" in decision.reason
    assert "without it and 1 more a step takes" in decision.reason
    assert decision.numbers["workers"] == 2
    assert {one.trouble for one in run.state.oversight.spares} == {"exchange"}


def test_a_network_that_makes_steps_several_times_as_long_is_noticed_in_the_first_steps():
    run = Run(exclusion_cost_s=2.0)
    run.hop_s[:] = 8.0
    run.measure(5)
    assert run.state.members == (0,)
    assert run.said("exclude")[0].numbers["step"] <= 4


def weighed(run, exchange_s, *, step=0, compute_s=(0.2, 0.3, 0.5)):
    """Each member of the run has computed a step, and a probe says how long the exchange will take."""
    count = len(run.state.members)
    expected = StepMeasured(
        step=step,
        view=run.state.view.number,
        workers=run.state.members,
        samples=np.array(run.state.view.shares),
        compute_s=np.array(compute_s[:count]),
        exchange_s=exchange_s,
    )
    return run.send(StepWeighed(expected=expected))


def test_a_slow_network_is_seen_before_the_first_exchange():
    run = Run(count=3)
    weighed(run, 20.0, compute_s=(9.0, 0.3, 0.5))
    assert run.state.members == (0, 1, 2), "a first step may take long: it is computed once more"
    again = run.of_kind(PublishView)[-1]
    assert again.is_recovery
    assert "by a probe of the links a step takes 12" in again.view.reason
    weighed(run, 20.0, compute_s=(0.2, 0.3, 0.5))
    assert run.state.members == (0,)
    decision, _ = run.said("exclude")
    assert decision.numbers["step"] == 0
    assert decision.numbers["with_s"] == pytest.approx(20.0, rel=0.05)
    assert "as a probe of the links says before the first exchange" in decision.reason
    assert {one.trouble for one in run.state.oversight.spares} == {"exchange"}
    run.show(1, 1.0, times=20)
    assert run.of_kind(TakeBack) == [], "it is not asked back at once"


def test_who_is_seen_by_the_second_step_is_left_out_at_once():
    run = Run(count=3)
    weighed(run, 20.0, compute_s=(9.0, 12.0, 11.0))
    assert len(run.of_kind(PublishView)) == 1, "the first step was as long as its exchange"
    weighed(run, 20.0, step=1)
    assert run.state.members == (0,)


def test_what_is_not_evident_is_left_to_measured_steps():
    run = Run(count=3)
    for step in (0, 1):
        weighed(run, 1.0, step=step)
    assert run.state.members == (0, 1, 2)
    assert len(run.of_kind(PublishView)) == 1


def test_whose_link_has_changed_is_waited_for_where_exchanging_was_quick_before():
    """Hops are timed by the best of late, which fades: it shows late whose exchanges are long."""
    run = Run()
    run.slowdown[2] = 0.9  # who would be the one to go on alone
    run.measure(20)
    run.exchange_s = 3.0
    for _ in range(30):
        run.hop_s[2] = min(0.3, 1.43 * run.hop_s[2])
        run.measure()
        if len(run.state.members) < 4:
            break
    assert run.state.members == (0, 1, 3)
    (decision,) = run.said("exclude")
    assert "over the link of worker 2" in decision.reason
    assert decision.numbers["lost_steps"] >= PATIENCE


def test_exchanging_that_has_been_long_from_the_start_is_not_waited_for():
    run = Run()
    run.slowdown[2] = 0.9
    run.exchange_s = 3.0
    run.measure(6)
    assert run.state.members == (2,)


def test_exchanging_that_a_new_cut_hides_less_of_is_no_link_that_has_changed():
    """The slowest hides much of it by computing until it gets fewer samples."""
    run = Run(count=3, exclusion_cost_s=5.0)
    run.slowdown = np.array([0.26, 0.43, 1.0])
    run.exchange_s = 0.1
    while len(run.of_kind(PublishView)) < 2:
        run.measure()
    run.exchange_s = 0.2
    run.measure(15)
    assert run.state.members == (0,)


@pytest.mark.parametrize("options", [{"may_exclude": False}, {"allocation": "equal"}])
def test_a_probe_leaves_nobody_out_who_may_not_be(options):
    run = Run(count=3, **options)
    for _ in range(2):
        weighed(run, 20.0)
    assert run.state.members == (0, 1, 2)
    assert len(run.of_kind(PublishView)) == 1


def test_a_probe_says_nothing_of_another_view_or_without_all_members():
    run = Run(count=3)
    weighed(run, 20.0, compute_s=(0.2, np.nan, 0.5))
    weighed(run, 20.0, compute_s=(0.2, 0.0, 0.5))
    expected = StepMeasured(
        step=0,
        view=7,
        workers=(0, 1, 2),
        samples=np.array([22, 21, 21]),
        compute_s=np.full(3, 0.2),
        exchange_s=20.0,
    )
    run.send(StepWeighed(expected=expected))
    assert len(run.of_kind(PublishView)) == 1


def test_a_slow_worker_is_watched_for_longer_than_a_slow_network():
    run = Run(exclusion_cost_s=2.0)
    run.slowdown[3] = 100.0
    run.measure(5)
    assert run.state.members == (0, 1, 2, 3), "the first steps of a process may be slow"
    run.measure(10)
    assert run.state.members == (0, 1, 2)


def test_members_that_are_left_out_for_what_exchanging_costs_are_not_asked_back_at_once():
    run = costly(2.0, steps=12)
    assert len(run.state.members) == 1
    run.show(2, 1.0, times=100)
    assert run.of_kind(TakeBack) == []


def test_those_with_good_links_go_on_together_when_the_fastest_has_a_bad_one():
    run = Run()
    run.slowdown[0] = 0.9
    run.hop_s[0] = 1.0
    run.measure(12)
    assert run.state.members == (1, 2, 3)


@pytest.mark.parametrize("seed", range(4))
def test_even_workers_stay_together_whatever_the_noise(seed):
    rng = np.random.default_rng(seed)
    run = Run(count=4)
    run.hop_s[:] = 0.05
    for _ in range(300):
        run.slowdown = np.exp(rng.normal(0, 0.15, 4))
        run.measure()
    assert run.said("exclude") == []


def test_nobody_is_excluded_when_the_others_cannot_hold_the_batch():
    run = Run(count=2)
    run.state = ControlState.begin(run.state.options)
    run.send(WorkersJoined(workers=(0, 1), max_samples=(40, 40)))
    run.measure(20)
    run.slowdown[1] = 200
    run.measure(80)
    assert run.state.members == (0, 1)


# --- link and line -------------------------------------------------------------------------------


def test_a_worker_with_a_bad_link_is_excluded_when_its_computing_is_as_usual():
    run = Run()
    run.measure(20)
    run.hop_s[1] = 2.0
    run.measure(30)
    assert run.state.members == (0, 2, 3)
    assert run.said("compute_trouble") == []
    assert len(run.said("link_trouble")) == 1
    (decision,) = run.said("exclude")
    assert "a MiB takes 2 s over the link of worker 1, 0.01 s over the others'" in decision.reason


def test_a_link_that_is_a_little_slower_is_said_and_nobody_is_excluded():
    run = Run()
    run.measure(20)
    run.hop_s[1] = 0.02
    run.measure(30)
    assert len(run.said("link_trouble")) == 1
    assert run.state.members == (0, 1, 2, 3)
    run.hop_s[1] = 0.01
    run.measure(10)
    assert len(run.said("link_recovered")) == 1


def test_late_reports_are_said_and_nothing_is_done_when_the_steps_go_on():
    run = Run(exclusion_cost_s=0.0)
    run.measure(20)
    run.late_s[2] = 3.0
    run.measure(60)
    assert len(run.said("line_trouble")) == 1
    assert "until its reports arrive" in run.said("line_trouble")[0].reason
    assert run.state.members == (0, 1, 2, 3)


def test_several_at_once_are_said_in_one_sentence():
    run = Run()
    run.measure(20)
    run.slowdown[1:3] = 3
    run.measure(4)
    assert run.said("compute_trouble")[0].reason.endswith(", and 1 more")


def test_measurements_of_an_older_view_are_put_in_the_order_of_the_newest():
    run = Run()
    run.measure(20)
    run.send(
        StepMeasured(
            step=run.step,
            view=0,
            workers=(3, 1),
            samples=np.array([16, 16]),
            compute_s=np.array([0.36, 0.36]),
            hop_s=np.array([0.01, 0.01]),
        )
    )
    assert run.said("compute_trouble") == run.said("link_trouble") == []


# --- probation -----------------------------------------------------------------------------------


def test_a_spare_is_asked_back_when_it_shows_three_times_that_it_helps():
    run = excluded()
    run.show(3, 30.0, times=5)
    assert run.of_kind(TakeBack) == []
    run.show(3, 1.05, times=2)
    assert run.of_kind(TakeBack) == []
    run.show(3, 1.05)
    assert run.of_kind(TakeBack) == [TakeBack(worker=3)]
    (decision,) = run.said("take_back")
    assert "worker 3 shows 1.05 times its first time" in decision.reason
    run.send(WorkersJoined(workers=(3,)))
    assert run.state.oversight.spares == ()
    run.slowdown[3] = 1
    run.measure(40)
    assert run.state.members == (0, 1, 2, 3)
    assert run.state.view.shares[3] >= 14


def test_a_spare_is_asked_again_when_it_did_not_come():
    run = excluded()
    run.show(3, 1.0, times=8)
    assert len(run.of_kind(TakeBack)) == 1
    run.show(3, 1.0, times=10)
    assert len(run.of_kind(TakeBack)) == 2


def test_a_spare_is_tried_after_a_long_time_whatever_it_shows():
    run = excluded()
    run.now += 149
    run.show(3, 30.0, times=3)
    assert len(run.of_kind(TakeBack)) == 1
    assert "it is tried after" in run.said("take_back")[0].reason


def test_a_spare_with_a_bad_link_is_tried_since_it_cannot_show_anything():
    run = Run()
    run.measure(20)
    run.hop_s[1] = 2.0
    while len(run.state.members) == 4:
        run.measure()
    run.show(1, 1.0, times=5)
    assert run.of_kind(TakeBack) == []
    run.now += 10
    run.show(1, 1.0)
    assert run.of_kind(TakeBack) == [TakeBack(worker=1)]


def test_a_worker_is_out_for_longer_each_time_that_it_is_excluded():
    run = excluded()
    first = run.state.oversight.spare(3)
    run.send(WorkersJoined(workers=(3,)))
    run.measure(80)
    second = run.state.oversight.spare(3)
    assert second.pause_s == 2 * first.pause_s
    assert run.state.oversight.exclusions == {3: 2}


def test_what_others_show_means_nothing():
    run = excluded()
    before = run.state
    run.show(7, 1.0)
    run.show(0, 1.0)
    assert run.state is before
    bare = ControlState.begin(ControlOptions(global_batch=8))
    assert decide(bare, SpareMeasured(worker=0, slowdown=1.0), 0.0) == (bare, [])


def test_what_is_known_of_the_members_stays_with_them_when_one_leaves():
    run = Run()
    run.measure(20)
    run.send(WorkersLeft(workers=(0,)))
    run.measure(6)
    run.slowdown[3] = 3
    run.measure(4)
    assert "worker 3 takes" in run.said("compute_trouble")[0].reason


def test_the_rate_of_a_team_is_lowered_before_one_of_it_is_excluded():
    whole = Whole(team=2, first_rank=4, workers=12, first_sample=64, samples=192)
    run = Run(whole=whole)
    run.measure(20)
    run.slowdown[3] = 30
    while not run.of_kind(LowerRate):
        run.measure()
    assert run.of_kind(LowerRate) == [LowerRate(worker=3, team=2)]
    assert "its team 2 is merged more rarely" in run.said("lower_rate")[0].reason
    assert run.state.members == (0, 1, 2, 3)
    run.measure(30)
    assert run.state.members == (0, 1, 2)


def test_a_cost_below_zero_is_refused():
    with pytest.raises(UsageError, match="exclusion_cost_s is a number of seconds from 0 on"):
        ControlOptions(global_batch=8, exclusion_cost_s=-1.0)


def test_people_are_told_once_what_the_workers_would_make_apart():
    """A step takes a second: 0.66 s to compute, and what the loop does besides."""
    run = Run(count=3, may_part=True)
    run.hop_s[:] = 2.0
    run.measure(60)
    (said,) = run.said("hint")
    assert run.state.members == (0,)
    assert said.reason.startswith("in step, 1 of 3 workers are used: about 64 samples/s; ")
    third_s = 0.02 + 0.01 * 64 / 3 + 0.34
    assert said.numbers["apart"] == pytest.approx(0.9 * 64 / third_s, rel=0.05)
    assert said.numbers["in_step"] == pytest.approx(64, rel=0.05)


@pytest.mark.parametrize(
    ("hop_s", "options"),
    [
        (2.0, {"may_part": False}),
        (2.0, {"may_part": True, "allocation": "equal"}),
        (0.001, {"may_part": True}),
    ],
)
def test_nothing_is_hinted_where_it_cannot_be_or_helps_little(hop_s, options):
    run = Run(count=3, **options)
    run.hop_s[:] = hop_s
    run.measure(60)
    assert run.said("hint") == []


def test_everybody_takes_part_where_that_is_asked_for():
    run = Run(count=3, may_exclude=False)
    run.slowdown[:], run.hop_s[:] = (1, 2, 50), 2.0
    run.measure(60)
    assert run.state.members == (0, 1, 2)
