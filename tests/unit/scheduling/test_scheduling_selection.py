# SPDX-License-Identifier: Apache-2.0
"""What is measured of a loop, what follows from it, and what is tried and kept."""

from __future__ import annotations

import msgspec
import pytest

from gangline.scheduling import Choice, Layout
from gangline.scheduling.measures import LoopMeter, LoopReport, imbalance
from gangline.scheduling.selection import Selector, rules
from gangline.scheduling.selection.following import Follower
from gangline.scheduling.selection.learning import Sarsa
from gangline.spec.errors import UsageError

EVERY = tuple(Layout)
CALM = LoopReport(
    items=1000,
    chunks=40,
    steals=3,
    time_s=2.6,
    imbalance=0.01,
    overhead_share=0.001,
    overhead_s=1e-5,
    mean_s=0.01,
    variation=0.02,
    rates={0: 100.0, 1: 101.0, 2: 99.0, 3: 100.0},
)


def report(**changed) -> LoopReport:
    return msgspec.structs.replace(CALM, **changed)


@pytest.mark.parametrize(
    ("times", "expected"),
    [([1, 1, 1], 0.0), ([4, 0, 0, 0], 1.0), ([4, 2], 0.5), ([3], 0.0), ([0, 0], 0.0), ([], 0.0)],
)
def test_imbalance_is_0_where_all_end_together_and_1_where_one_does_all(times, expected):
    assert imbalance(times) == pytest.approx(expected)


def test_a_loop_is_measured_by_what_workers_report():
    meter = LoopMeter()
    meter.add(0, 10, 1.0, overhead_s=0.25, is_stolen=False)
    meter.add(0, 10, 3.0, overhead_s=0.25, is_stolen=True)
    meter.add(1, 10, 2.0, overhead_s=0.0, is_stolen=False)
    found = meter.report(workers=2)
    assert (found.items, found.chunks, found.steals) == (30, 3, 1)
    assert found.time_s == 4.5
    assert found.imbalance == pytest.approx((4.5 - 3.25) / 4.5 * 2)
    assert found.overhead_share == pytest.approx(0.5 / 6.5)
    assert found.overhead_s == pytest.approx(0.5 / 3)
    assert found.mean_s == pytest.approx(0.2)
    assert found.rates == pytest.approx({0: 5.0, 1: 5.0})
    assert meter.report(workers=3).imbalance > found.imbalance, "a third one did nothing"


def test_nothing_measured_is_a_report_too():
    found = LoopMeter().report(workers=3)
    assert (found.items, found.time_per_item_s, found.unlikeness, found.doubt) == (0, 0.0, 1.0, 0.0)
    assert found.lost_share == 0.0


def test_what_was_lost_is_waiting_and_overhead():
    found = report(imbalance=0.4, overhead_share=0.1)
    idle = 0.4 * 3 / 4
    assert found.lost_share == pytest.approx(idle + (1 - idle) * 0.1)


@pytest.mark.parametrize(
    ("changed", "scheme"),
    [
        ({}, "GSS"),
        ({"variation": 0.5}, "AWF-E(x=8)"),
        ({"rates": {0: 100.0, 1: 50.0}}, "AWF-E(x=8)"),
    ],
)
def test_the_scheme_follows_from_how_alike_workers_and_items_are(changed, scheme):
    choice, why = rules.pick(report(**changed), 1000, 4, EVERY)
    assert str(choice.scheme) == scheme
    assert why


def test_workers_whose_items_differ_are_not_taken_for_unlike():
    """With σ/μ = 5 and 250 items each, rates that differ by a half say nothing."""
    found = report(variation=5.0, rates={0: 100.0, 1: 150.0, 2: 100.0, 3: 110.0})
    _, why = rules.pick(found, 1000, 4, EVERY)
    assert "items are not alike" in why


@pytest.mark.parametrize(
    ("changed", "total", "grain"),
    [
        ({}, 1000, 1),
        ({"overhead_s": 0.005}, 10_000, 5),
        ({"overhead_s": 0.03}, 1000, 12),
        ({"overhead_s": 1.0}, 1000, 250),
        ({"overhead_s": 1.0, "rates": {0: 99.0, 1: 1.0}}, 1000, 1),
        ({"mean_s": 0.0}, 1000, 1),
    ],
    ids=[
        "cheap",
        "a tenth",
        "all workers have chunks",
        "a short loop",
        "the slowest would take long",
        "no time",
    ],
)
def test_the_grain_follows_from_what_a_chunk_costs(changed, total, grain):
    assert rules.grain_for(report(**changed), total, 4) == grain


def test_one_worker_does_it_all_at_once():
    assert str(rules.pick(CALM, 1000, 1, EVERY)[0]) == "STATIC, CENTRALIZED"
    assert str(rules.probe(1000, 1, EVERY)[0]) == "STATIC, CENTRALIZED"


@pytest.mark.parametrize(
    ("layouts", "first"),
    [
        (EVERY, "PERGROUP"),
        ((Layout.PERCPU, Layout.CENTRALIZED), "CENTRALIZED"),
        ((Layout.PERCPU,), "PERCPU"),
    ],
)
def test_only_layouts_that_the_caller_can_do_are_picked(layouts, first):
    assert rules.pick(CALM, 1000, 4, layouts)[0].layout == first
    assert rules.probe(1000, 4, layouts)[0].layout == first
    worse = report(imbalance=0.5, variation=1.0)
    picked, _ = rules.pick(worse, 1000, 4, layouts)
    tried = [*rules.alternatives(picked, worse, layouts), *rules.arms(picked, layouts)]
    assert {choice.layout for choice in tried} <= set(layouts)
    assert str(picked) not in {str(choice) for choice in tried}


def test_nothing_else_is_tried_where_nothing_is_lost():
    picked, _ = rules.pick(CALM, 1000, 4, EVERY)
    assert rules.alternatives(picked, CALM, EVERY) == []


def rethought(found: LoopReport, scheme: str, *, remaining: int = 900, grain: int = 1):
    return rules.rethink(
        found, Choice.parse(scheme, grain=grain), remaining=remaining, total=1000, workers=4
    )


def test_within_a_loop_the_grain_is_raised_against_overheads():
    costly = report(overhead_share=0.3, overhead_s=0.005)
    choice, why = rethought(costly, "SS")
    assert (str(choice.scheme), choice.grain) == ("SS", 4)
    assert "30%" in why
    assert rethought(costly, "SS", grain=5) is None, "as large as it should be"
    assert rethought(costly, "SS", remaining=200) is None, "too late to be worth it"


def test_within_a_loop_workers_come_to_be_unlike():
    slowed = report(rates={0: 100.0, 1: 40.0})
    choice, _ = rethought(slowed, "GSS")
    assert str(choice.scheme) == "AWF-E(x=8)"
    assert rethought(slowed, "AWF-C") is None, "it follows speeds by itself"
    assert rethought(CALM, "GSS") is None


def feed(follower: Follower, times: dict[str, float], loops: int) -> list[str]:
    """The choices of some loops whose time per item depends on the choice."""
    picked = []
    last = report(imbalance=0.3, variation=1.0)
    for _ in range(loops):
        choice, _ = follower.pick(last, 1000, 4)
        took = next((times[key] for key in times if key in str(choice)), 1.0)
        last = report(imbalance=0.3, variation=1.0, time_s=took * 1000)
        follower.note(choice, last)
        picked.append(str(choice))
    return picked


EXPERT, FINER = "AWF-E(x=8), PERGROUP, SEQPRI", "AWF-E(x=4), PERGROUP, SEQPRI"


def test_alternatives_get_a_loop_each_and_the_best_is_kept():
    picked = feed(Follower(EVERY), {FINER: 0.5}, 8)
    assert picked[:5] == [
        EXPERT,
        FINER,
        "AWF-E(x=2), PERGROUP, SEQPRI",
        "AWF-E(x=8), PERCPU, RANDOMPRI",
        EXPERT,
    ]
    assert picked[5:] == [FINER] * 3


def test_the_experts_choice_stays_where_others_are_hardly_better():
    assert feed(Follower(EVERY), {FINER: 0.995}, 8)[5:] == [EXPERT] * 3


def test_what_is_better_by_less_than_loops_differ_is_not_followed():
    follower, uneven = Follower(EVERY), report(imbalance=0.3, variation=1.0)
    picked = []
    for took_s in (1000.0, 900.0, 1000.0, 1000.0, 1300.0, 1000.0):
        choice, _ = follower.pick(uneven, 1000, 4)
        follower.note(choice, report(imbalance=0.3, variation=1.0, time_s=took_s))
        picked.append(str(choice))
    assert picked[1] == FINER
    assert picked[5] == EXPERT, "its own loops differ by 30 %, the other was better by 17 %"


def test_all_begins_anew_when_loops_come_to_be_uneven():
    follower = Follower((Layout.CENTRALIZED,))
    choice, _ = follower.pick(CALM, 1000, 4)
    assert str(choice.scheme) == "GSS"
    follower.note(choice, CALM)
    assert "best of 1" in follower.pick(CALM, 1000, 4)[1]
    uneven = report(imbalance=0.5, rates={0: 100.0, 1: 20.0})
    follower.note(choice, uneven)
    choice, why = follower.pick(uneven, 1000, 4)
    assert str(choice.scheme) == "AWF-E(x=8)"
    assert "5 times as fast" in why


def test_what_a_choice_took_is_forgotten_in_time():
    follower = Follower(EVERY)
    feed(follower, {FINER: 0.5}, 6)
    later = feed(follower, {FINER: 3.0}, 8)
    assert later[0] == FINER
    assert later[-1] == EXPERT


@pytest.mark.parametrize(("overhead_s", "x"), [(1e-5, 8), (0.005, 4), (1.0, 4)])
def test_the_more_chunks_cost_the_larger_they_are(overhead_s, x):
    found = report(overhead_s=overhead_s)
    assert rules.varied(found, 1000, 4, grain=1) == f"AWF-E(x={x})"


def sarsa_run(seed: int, loops: int = 120) -> list[str]:
    learner, picked = Sarsa(seed=seed), []
    choices = [Choice.parse(name) for name in ("GSS", "FAC2", "SS")]
    last = CALM
    for _ in range(loops):
        choice, why = learner.pick(choices, last)
        assert why
        last = report(time_s={"GSS": 1.2, "FAC2": 1.0, "SS": 2.0}[str(choice.scheme)])
        learner.reward(last)
        picked.append(str(choice.scheme))
    return picked


def test_sarsa_comes_to_the_best_and_is_the_same_with_the_same_seed():
    picked = sarsa_run(3)
    assert picked == sarsa_run(3)
    assert picked != sarsa_run(4)
    assert set(picked[:30]) == {"GSS", "FAC2", "SS"}
    assert picked[-50:].count("FAC2") > 35


def test_sarsa_learns_by_state():
    """In uneven loops SS is best, in others GSS."""
    learner = Sarsa(seed=0)
    choices = [Choice.parse(name) for name in ("GSS", "SS")]
    best = {True: "SS", False: "GSS"}
    hits = []
    for loop in range(400):
        is_uneven = loop % 2 == 0
        choice, why = learner.pick(choices, report(imbalance=0.5 if is_uneven else 0.0))
        is_best = str(choice.scheme) == best[is_uneven]
        learner.reward(report(time_s=1.0 if is_best else 3.0))
        if "largest" in why:
            hits.append(is_best)
    assert all(hits[-50:])


def test_the_first_loop_is_a_probe_until_all_have_reported():
    selector = Selector(workers=2)
    queues = selector.begin(6400)
    assert str(queues.choice) == "SS, grain 100, PERGROUP, SEQPRI"
    first, second = queues.take(0), queues.take(1)
    queues.finished(0, first, 1.0)
    assert queues.advice.is_within is False
    queues.finished(1, second, 5.0)
    assert str(queues.choice.scheme) == "AWF-E(x=8)"
    begun, switched = selector.decided()
    assert (begun.what, switched.what) == ("schedule", "reschedule")
    assert (begun.loop, switched.loop) == (0, 0)
    assert switched.numbers["unlikeness"] == pytest.approx(5.0)
    assert switched.numbers["remaining"] == 6200
    assert queues.take(0).size > 2.5 * queues.take(1).size, "weights are known already"
    assert selector.decided() == []


def test_a_probe_does_not_wait_for_ever_for_a_worker_that_never_comes():
    queues = Selector(workers=8).begin(6400)
    while queues.advice.is_within is False:
        queues.finished(0, queues.take(0), 1.0)
    assert 4600 < queues.remaining <= 4800


def test_speeds_are_known_in_the_next_loop():
    selector = Selector(workers=2, layouts=(Layout.PERCPU,))
    queues = selector.begin(640)
    while (chunk := queues.take(0)) is not None:
        queues.finished(0, chunk, 0.01 * chunk.size)
        if (chunk := queues.take(1)) is not None:
            queues.finished(1, chunk, 0.03 * chunk.size)
    selector.end(queues)
    chunk = selector.begin(640).take(1)
    assert chunk.start == pytest.approx(480, abs=10), "three quarters are the other's"


def test_an_empty_loop_changes_nothing():
    selector = Selector(workers=2)
    assert selector.end(selector.begin(0)).items == 0
    assert str(selector.begin(640).choice.scheme) == "SS"


def test_an_unknown_method_is_refused():
    with pytest.raises(UsageError, match=r"no method 'sarsaa'; there are expert, sarsa; .*'sarsa'"):
        Selector(workers=2, method="sarsaa")
