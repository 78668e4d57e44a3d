# SPDX-License-Identifier: Apache-2.0
"""Loops in virtual time, against times that were worked out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cases import quick_of
from gangline.scheduling import Choice, Layout, WorkQueues
from gangline.simulation.loops import (
    WORKLOADS,
    Crowd,
    FlatSource,
    Overheads,
    Program,
    TwoLevelSource,
    estimated_speeds,
    make_workload,
    read_records,
    recorded_costs,
    run_automated,
    run_fixed,
    run_loop,
    run_two_levels,
    summed_up,
)
from gangline.spec.errors import LogError, UsageError

FREE = Overheads(chunk_s=0, queue_s=0, steal_s=0, far_steal_s=0)
PAIR = Crowd(speeds=(1.0, 0.5))


def run(scheme: str, costs, crowd: Crowd, overheads: Overheads = FREE, **given):
    choice = Choice.parse(scheme, **given)
    queues = WorkQueues(choice, total=len(costs), workers=len(crowd.speeds), groups=crowd.group_of)
    return run_loop(costs, FlatSource(queues, overheads), crowd, remote=overheads.remote)


def test_a_slow_worker_gets_as_much_of_a_static_loop_and_is_waited_for():
    result = run("STATIC", np.ones(10), PAIR)
    assert result.time_s == pytest.approx(10.0)
    assert result.imbalance == pytest.approx((10 - 7.5) / 10 * 2)
    assert result.chunks == 2


def test_single_items_even_that_out():
    result = run("SS", np.ones(9), PAIR)
    assert result.time_s == pytest.approx(6.0)
    assert [sum(r.worker == worker for r in result.records) for worker in (0, 1)] == [6, 3]


def test_each_chunk_costs_its_overhead():
    overheads = Overheads(chunk_s=0.5, queue_s=0, steal_s=0, far_steal_s=0)
    result = run("SS", np.ones(4), Crowd(speeds=(1.0,)), overheads)
    assert (result.time_s, result.overhead_s) == (pytest.approx(6.0), pytest.approx(2.0))


def test_a_queue_serves_one_after_the_other():
    overheads = Overheads(chunk_s=0, queue_s=0.25, steal_s=0, far_steal_s=0)
    four = Crowd(speeds=(1.0,) * 4)
    assert run("STATIC", np.ones(4), four, overheads).time_s == pytest.approx(2.0)
    own = run("STATIC", np.ones(4), four, overheads, layout="PERCPU")
    assert own.time_s == pytest.approx(1.25), "each asks its own queue"


def test_stealing_costs_more_from_another_group():
    overheads = Overheads(chunk_s=0, queue_s=0, steal_s=0.5, far_steal_s=2.0)
    two, apart = Crowd(speeds=(8.0, 1.0)), Crowd(speeds=(8.0, 1.0), groups=(0, 1))
    near = run("SS", np.ones(8), two, overheads, layout="PERCPU")
    far = run("SS", np.ones(8), apart, overheads, layout="PERCPU")
    assert near.steals >= 2
    assert near.overhead_s == pytest.approx(0.5 * near.steals)
    assert far.overhead_s == pytest.approx(2.0 * far.steals)


def test_items_take_longer_where_their_data_are_not():
    overheads = Overheads(chunk_s=0, queue_s=0, steal_s=0, far_steal_s=0, remote=0.5)
    crowd = Crowd(speeds=(1.0, 1e-6), groups=(0, 1))
    result = run("SS", np.ones(4), crowd, overheads)
    assert result.remote_items == 3, "items 2 and 3, and item 1, which the slow worker took"
    assert [r.seconds for r in result.records if r.worker == 0] == pytest.approx([1.0, 1.5, 1.5])
    lone = run("STATIC", np.ones(4), Crowd(speeds=(1.0,)), overheads)
    assert (lone.time_s, lone.remote_items) == (pytest.approx(4.0), 0)


def test_speeds_depend_on_the_time_and_the_seed_alone():
    crowd = Crowd(speeds=(1.0, 2.0), noise=0.3, pause_probability=0.1)
    one, again, other = crowd.paces(1), crowd.paces(1), crowd.paces(2)
    assert one[0].finish(0.0, 30.0) == again[0].finish(0.0, 30.0) != other[0].finish(0.0, 30.0)
    whole = one[1].finish(0.0, 7.0)
    assert again[1].finish(again[1].finish(0.0, 3.0), 4.0) == pytest.approx(whole)
    assert one[1].finish(5.0, 0.0) == pytest.approx(5.0)


def test_a_worker_that_pauses_is_slower():
    steady = Crowd(speeds=(1.0,)).paces(0)[0].finish(0.0, 50.0)
    pausing = Crowd(speeds=(1.0,), pause_probability=0.05).paces(0)[0].finish(0.0, 50.0)
    assert steady == 50.0
    assert 55.0 < pausing < 80.0


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_its_mean_and_is_the_same_with_the_same_seed(name):
    costs = make_workload(name, 500, mean_s=0.25, seed=1)
    assert costs.mean() == pytest.approx(0.25)
    assert costs.min() > 0
    assert (costs == make_workload(name, 500, mean_s=0.25, seed=1)).all()
    assert len(make_workload(name, 0)) == 0


def test_an_unknown_workload_is_refused():
    with pytest.raises(UsageError, match="did you mean 'bursts'"):
        make_workload("burst", 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"speeds": ()}, "above 0"),
        ({"speeds": (1.0, 0.0)}, "above 0"),
        ({"speeds": (1.0,), "groups": (0, 1)}, "2 groups for 1 workers"),
        ({"speeds": (1.0,), "pause_probability": 0.7}, "below 0.5"),
    ],
)
def test_a_crowd_that_cannot_be_is_refused(given, said):
    with pytest.raises(UsageError, match=said):
        Crowd(**given)


NODES = Crowd(speeds=(1.0, 1.0, 0.5, 0.5), groups=(0, 0, 1, 1))


@pytest.mark.parametrize("outer", ["STATIC", "GSS", "AWF-C", "AF"])
@pytest.mark.parametrize("inner", ["SS", "FAC2"])
def test_two_levels_do_every_item_once(outer, inner):
    source = TwoLevelSource(
        Choice.parse(outer),
        Choice.parse(inner, layout="PERCPU"),
        total=200,
        crowd=NODES,
        overheads=FREE,
    )
    result = run_loop(np.full(200, 0.1), source, NODES)
    done = sorted(item for one in result.records for item in range(one.start, one.stop))
    assert done == list(range(200))


def test_two_levels_are_exact_where_nothing_is_random():
    """Two nodes with half of 12 items each; a node waits 1 s for its chunk, then shares it out."""
    source = TwoLevelSource(
        Choice.parse("STATIC"),
        Choice.parse("SS"),
        total=12,
        crowd=NODES,
        overheads=FREE,
        between_s=1.0,
    )
    result = run_loop(np.ones(12), source, NODES)
    assert result.time_s == pytest.approx(1 + 3 / 0.5)
    assert {one.worker for one in result.records if one.start < 6} == {0, 1}


def test_the_scheme_between_nodes_learns_which_is_faster():
    program = Program(crowd=NODES, overheads=FREE, items=4000)
    (even,) = run_two_levels(program, Choice.parse("STATIC"), Choice.parse("SS"), between_s=0.0)
    (learnt,) = run_two_levels(program, Choice.parse("AWF-C"), Choice.parse("SS"), between_s=0.0)
    assert even.time_s == pytest.approx(2.0)
    assert learnt.time_s == pytest.approx(4 / 3, rel=0.02)


def lines_of(result) -> list[str]:
    return [
        json.dumps({"start": r.start, "stop": r.stop, "worker": r.worker, "seconds": r.seconds})
        for r in result.records
    ]


def test_a_recorded_loop_is_what_it_was():
    costs = make_workload("decreasing", 300, seed=0)
    records = read_records([*lines_of(run("SS", costs, Crowd(speeds=(1.0, 1.0)))), ""])
    assert estimated_speeds(records) == pytest.approx((1.0, 1.0), rel=0.02)
    assert recorded_costs(records, (1.0, 1.0)) == pytest.approx(costs)


def test_speeds_are_estimated_from_a_recording():
    result = run("SS", np.ones(90), Crowd(speeds=(0.5, 2.0)))
    records = read_records(lines_of(result))
    assert estimated_speeds(records) == pytest.approx((0.25, 1.0))
    assert recorded_costs(records, (0.25, 1.0)) == pytest.approx(np.full(90, 0.5))
    with pytest.raises(UsageError, match="1 speeds, but worker 1"):
        recorded_costs(records, (1.0,))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "has no chunks"),
        (["{"], "line 1"),
        (['{"start": 0, "stop": 1, "worker": 0}'], "line 1: .*seconds"),
        ([b'{"start": 0, "stop": "\xff"}'], "line 1"),
        (['{"start": 2, "stop": 2, "worker": 0, "seconds": 1}'], "cannot be a chunk"),
        (['{"start": 0, "stop": 2, "worker": 0, "seconds": -1}'], "cannot be a chunk"),
        (['{"start": 3, "stop": 5, "worker": 0, "seconds": 1}'], "items 0 to 2 are missing"),
        (
            [
                '{"start": 0, "stop": 5, "worker": 0, "seconds": 1}',
                '{"start": 3, "stop": 9, "worker": 1, "seconds": 1}',
            ],
            "items 3 to 4 are there twice",
        ),
    ],
)
def test_a_damaged_recording_is_refused(lines, said):
    with pytest.raises(LogError, match=said):
        read_records(lines)


UNLIKE = Crowd(speeds=(1.0, 1.0, 0.5, 0.5, 0.2, 0.2, 0.1, 0.1), groups=(0,) * 4 + (1,) * 4)


@pytest.mark.parametrize("workload", quick_of(WORKLOADS, quick=["sorted-by-size"]))
def test_the_automated_choice_is_near_the_best_of_some(workload):
    program = Program(
        crowd=UNLIKE, overheads=Overheads(remote=0.1), loops=10, items=2000, workload=workload
    )
    took_s = summed_up(run_automated(program)[0], None, name="automated").time_s
    fixed = [
        summed_up(run_fixed(program, choice), choice).time_s
        for choice in (
            Choice.parse("FAC2"),
            Choice.parse("GSS", layout="PERCPU"),
            Choice.parse("AWF-E", layout="PERGROUP"),
            Choice.parse("SS", grain=16, layout=Layout.PERGROUP),
        )
    ]
    assert took_s < 1.05 * min(fixed)
    assert took_s < 0.9 * max(fixed)


def test_decisions_say_why_and_carry_numbers():
    program = Program(crowd=UNLIKE, loops=3, items=2000)
    _, decisions = run_automated(program)
    assert [one.loop for one in decisions if not one.is_within] == [0, 1, 2]
    assert all(one.reason for one in decisions)
    assert all(one.numbers["imbalance"] is not None for one in decisions if one.loop)
