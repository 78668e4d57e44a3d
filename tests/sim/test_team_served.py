# SPDX-License-Identifier: Apache-2.0
"""Simulated teams that train by parameter servers: what that takes, and that no sample is lost."""

from __future__ import annotations

import random

import numpy as np
import pytest
from team_scenarios import check_samples, run_teams
from test_team_samples import random_faults, random_scenario

from cases import quick_of
from gangline.planning.cost.serving import compare_served
from gangline.planning.planner import PlanOptions, make_plan
from gangline.simulation import Scenario
from gangline.simulation.course import Outage, Switch
from gangline.simulation.engine.servers import UNIT_BYTES
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision, StepDone, UpdateApplied, UpdateVoided
from gangline.spec.faults import Fault
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, Zone
from gangline.spec.workload import Workload

MODES = (
    "bsp",
    "asp",
    "ssp(1)",
    "backup(1)",
    "asp(servers=2)",
    "bsp(replicas=0)",
    "ssp(2, servers=2, replicas=0)",
    "asp(update=worker, push=3, fetch=2)",
)


def even(*, count=4, speeds=None, bytes_per_s=1e7, **fields):
    """Workers for themselves, each with a link of its own."""
    nodes = tuple(
        SimulatedNode(name=f"n{i}", speed=speed, bytes_per_s=bytes_per_s, noise=0.0)
        for i, speed in enumerate(speeds or [1.0] * count)
    )
    return Scenario(nodes=nodes, **({"model_bytes": 1e5} | fields))


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def decided(what, events):
    return [event for event in of(Decision, events) if event.what == what]


@pytest.mark.parametrize("seed", quick_of(range(160), quick=range(8)))
def test_each_sample_is_used_once_whoever_dies_hangs_or_is_cut_off(seed):
    rng = random.Random(seed)
    scenario = random_scenario(rng)
    workers = range(len(scenario.worker_nodes))
    cuts = [
        Fault(worker=worker, kind="cut", at_s=rng.uniform(0, 3), for_s=rng.uniform(0.1, 1.4))
        for worker in (rng.sample(workers, 2) if seed % 3 == 0 else ())
    ]
    outages = (Outage(rng.uniform(0.2, 3), rng.uniform(0.1, 2)),) if seed % 5 == 0 else ()
    result, events = run_teams(
        scenario,
        MODES[seed % len(MODES)],
        samples=2001,
        epochs=2,
        faults=[*random_faults(rng, scenario), *cuts],
        seed=seed,
        respawns=rng.choice([0, 2]),
        outages=outages,
    )
    assert result.problem is None
    check_samples(events, length=2001, epochs=2)


def test_an_update_takes_the_push_the_copy_and_the_pull_over_the_links():
    message_s = 1e5 / 1e7
    for replicas, messages in ((0, 2), (1, 3)):
        _, events = run_teams(
            even(count=2), f"asp(replicas={replicas})", samples=64, epochs=1, global_batch=64
        )
        took_s = {event.worker: event.update_s for event in of(StepDone, events)}
        # The server's own push and pull take nothing; everybody waits 1 ms for the coordinator.
        assert took_s[1] == pytest.approx(messages * message_s + 0.001)
        assert took_s[0] == pytest.approx((messages - 2) * message_s + 0.001)


def test_a_server_takes_one_push_after_the_other_and_several_take_less():
    one, several = (
        run_teams(even(), f"bsp(servers={count}, replicas=0)", samples=1280, epochs=1)[1]
        for count in (1, 4)
    )
    step_s = [max(event.update_s for event in of(StepDone, events)) for events in (one, several)]
    assert step_s[0] == pytest.approx(2 * 3 * 0.01 + 0.001)
    assert step_s[1] == pytest.approx(2 * 3 * 0.01 / 4 + 0.001, rel=0.4)


@pytest.mark.parametrize(("servers", "replicas"), [(1, 0), (1, 1), (4, 0), (4, 1)])
def test_an_update_takes_about_what_the_cost_model_says(servers, replicas):
    nodes = tuple(NodeProfile(name=f"n{i}", per_sample_s=2e-4, fixed_s=2e-3) for i in range(4))
    zone = Zone(place="", link=Link(latency_s=0.0, bytes_per_s=1e7))
    profile = ClusterProfile(nodes=nodes, zones=(zone,))
    workload = Workload(global_batch=128, gradient_bytes=1e5)
    plan = make_plan(
        profile, workload, rng=np.random.default_rng(0), options=PlanOptions(everybody=True)
    )
    compared = compare_served(profile, workload, plan, replicas=replicas)
    (expected,) = [row for row in compared.rows if row.servers == servers]
    _, events = run_teams(
        even(), f"bsp(servers={servers}, replicas={replicas})", samples=1280, epochs=1
    )
    took_s = max(event.update_s for event in of(StepDone, events)) - 0.001
    assert took_s == pytest.approx(expected.together_s, rel=0.35)


@pytest.mark.parametrize("mode", ["bsp(replicas=0)", "asp(servers=2)"])
def test_all_but_the_last_unit_is_pushed_during_the_backward_pass(mode):
    """Four units: a server's link is free while all compute; the others' only for themselves."""
    four = even(count=2, model_bytes=float(4 * UNIT_BYTES), bytes_per_s=1e9)
    one = even(count=2, model_bytes=float(UNIT_BYTES), bytes_per_s=1e9 / 4)
    took_s = []
    for scenario in (four, one):  # the same seconds on the links, in one unit or in four
        _, events = run_teams(scenario, mode, samples=6400, epochs=1)
        took_s.append(np.median([event.update_s for event in of(StepDone, events)]))
    assert took_s[0] < 0.9 * took_s[1]


@pytest.mark.parametrize(
    ("mode", "name"),
    [("bsp(pull=forward)", "pull="), ("asp(ahead=1)", "ahead="), ("asp(rows=ondemand)", "rows=")],
)
def test_what_is_not_simulated_is_refused(mode, name):
    with pytest.raises(UsageError, match=f"not simulated; leave out {name}"):
        run_teams(even(), mode, samples=640, epochs=1)


def test_no_team_ends_the_epoch_alone_where_equals_spare_one():
    """Three of four pushes count in every round, so an epoch takes a third more rounds, not more."""
    took_s = [
        run_teams(even(count=4), mode, samples=6400, epochs=1)[0].wall_s
        for mode in ("bsp", "backup(1)")
    ]
    assert took_s[1] < 1.45 * took_s[0]


def test_a_slow_team_has_as_few_samples_as_its_speed_is_worth_in_bsp():
    scenario = even(speeds=[1.0, 1.0, 1.0, 0.2], bytes_per_s=None)
    _, events = run_teams(scenario, "bsp", samples=6400, epochs=1)
    usual = {
        team: np.median([one.samples for one in of(StepDone, events)[40:] if one.team == team])
        for team in range(4)
    }
    assert usual[3] < 0.3 * usual[0]


def test_asp_does_not_wait_for_the_slowest_and_bsp_does():
    scenario = even(speeds=[1.0, 1.0, 1.0, 0.2], bytes_per_s=None)
    results = {
        mode: run_teams(scenario, mode, samples=6400, epochs=1) for mode in ("asp", "ssp(2)", "bsp")
    }
    waited_s = {mode: result.waited_s for mode, (result, _) in results.items()}
    # In bsp parts of the batch are by speed alone, so less is waited there than in ssp.
    assert waited_s["asp"] < min(waited_s["ssp(2)"], waited_s["bsp"])
    clocks: dict[int, int] = {}
    for event in of(UpdateApplied, results["ssp(2)"][1])[: -4 * 8]:
        clocks[event.teams[0]] = event.clocks[0] + 1
        if len(clocks) == 4:
            assert max(clocks.values()) - min(clocks.values()) <= 3


def test_what_comes_too_late_is_used_by_others():
    scenario = even(speeds=[1.0, 1.0, 1.0, 0.05], bytes_per_s=None)
    result, events = run_teams(scenario, "backup(1)", samples=6400, epochs=1)
    assert result.problem is None
    assert {event.team for event in of(UpdateVoided, events)} == {3}
    check_samples(events, length=6400, epochs=1)


@pytest.mark.parametrize("mode", ["asp", "bsp"])
def test_the_copy_of_a_killed_server_serves_and_nothing_is_void(mode):
    kill = Fault(worker=0, kind="kill", at_s=0.5)
    result, events = run_teams(even(), mode, samples=6400, epochs=1, faults=[kill])
    assert result.problem is None
    assert len(decided("place_shards", events)) == 2
    assert not of(UpdateVoided, events)
    check_samples(events, length=6400, epochs=1)


@pytest.mark.parametrize("mode", ["asp(replicas=0)", "bsp(replicas=0)"])
def test_without_copies_all_go_back_and_what_came_since_is_computed_again(mode):
    kill = Fault(worker=0, kind="kill", at_s=0.5)
    result, events = run_teams(even(), mode, samples=6400, epochs=1, faults=[kill])
    assert result.problem is None
    assert len(decided("rebuild_shards", events)) == 1
    check_samples(events, length=6400, epochs=1)


def test_workers_are_switched_to_parameter_servers_and_back():
    result, events = run_teams(
        even(), "flexible", samples=6400, switches=(Switch(0.3, "asp"), Switch(1.5, "flexible"))
    )
    assert result.problem is None
    updates = [event.t for event in of(UpdateApplied, events)]
    assert 0.3 < min(updates) < max(updates) < result.wall_s - 0.1
    check_samples(events, length=6400, epochs=2)


def test_a_job_ends_though_who_hung_wakes_just_before_all_others_have_finished():
    def run(until):
        hang = Fault(worker=1, kind="hang", at_s=0.1, for_s=until - 0.1)
        scenario = even(speeds=[0.01, 0.01])
        return run_teams(scenario, "asp", samples=1920, epochs=1, faults=[hang])[0]

    end_s = run(1e6).wall_s
    result = run(end_s - 0.02)
    assert result.problem is None
    assert result.wall_s < end_s + 10
