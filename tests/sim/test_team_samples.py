# SPDX-License-Identifier: Apache-2.0
"""Simulated teams use each sample exactly once, whatever happens to them."""

from __future__ import annotations

import random

import pytest
from team_scenarios import MODES, check_samples, run_teams, two_sites

from gangline.simulation import Scenario
from gangline.simulation.links import SimulatedLink, Spell
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.event import LeaseReturned, Regrouped, RoundEnded, RunEnded, SamplesLeased
from gangline.spec.faults import Fault

SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 200))]


def random_scenario(rng):
    """Two to four groups of one to three workers, with links of all kinds between them."""
    names = "abcd"[: rng.randint(2, 4)]
    nodes = tuple(
        SimulatedNode(
            name=name,
            place=name,
            group=name if rng.random() < 0.7 else "",
            workers=rng.randint(1, 3),
            speed=10 ** rng.uniform(-1, 0),
            noise=rng.choice([0.0, 0.1, 0.4]),
        )
        for name in names
    )
    spells = (Spell(from_s=1.0, to_s=3.0, factor=rng.choice([0.2, 5.0])),)
    links = tuple(
        SimulatedLink(
            between=(first, second),
            bytes_per_s=10 ** rng.uniform(5.5, 8),
            delay_s=rng.choice([0.0, 0.001, 0.05]),
            jitter_s=rng.choice([0.0, 0.02]),
            spells=rng.choice([(), spells]),
        )
        for i, first in enumerate(names)
        for second in names[i + 1 :]
    )
    return Scenario(nodes=nodes, links=links, model_bytes=100e3, whole_bytes=200e3)


def random_faults(rng, scenario):
    """Whole groups that die or hang, single workers that do, or become slow; somebody stays well."""
    faults = []
    for group in scenario.groups[1:]:
        what = rng.choice(["none", "kill", "hang", "some"])
        at_s = rng.uniform(0.0, 6.0)
        if what == "kill":
            faults += [Fault(worker=one, kind="kill", at_s=at_s) for one in group]
        elif what == "hang":
            for_s = rng.uniform(0.5, 20.0)
            faults += [Fault(worker=one, kind="hang", at_s=at_s, for_s=for_s) for one in group]
        elif what == "some":
            where = rng.choice(["data", "backward", "exchange", "update", "between", "end"])
            step = rng.randint(0, 40)
            faults.append(Fault(worker=group[0], kind="kill", step=step, where=where))
            faults.append(Fault(worker=group[-1], kind="hang", at_s=at_s, for_s=0.5))
    return faults


@pytest.mark.parametrize("seed", SEEDS)
def test_each_sample_is_used_once_when_teams_die_and_hang(seed):
    rng = random.Random(seed)
    scenario = random_scenario(rng)
    faults = random_faults(rng, scenario)
    result, events = run_teams(
        scenario, MODES[seed % len(MODES)], samples=3001, epochs=2, faults=faults, seed=seed
    )
    assert result.problem is None
    assert len(result.epoch_s) == 2
    check_samples(events, length=3001, epochs=2)


@pytest.mark.parametrize("seed", SEEDS[:40])
def test_each_sample_is_used_once_when_workers_are_cut_off_and_replaced(seed):
    rng = random.Random(1000 + seed)
    scenario = random_scenario(rng)
    cuts = [
        Fault(worker=worker, kind="cut", at_s=rng.uniform(0, 3), for_s=rng.uniform(0.1, 1.4))
        for worker in rng.sample(range(len(scenario.worker_nodes)), 2)
    ]
    result, events = run_teams(
        scenario,
        MODES[seed % len(MODES)],
        samples=3001,
        epochs=2,
        faults=[*random_faults(rng, scenario), *cuts],
        seed=seed,
        respawns=2,
    )
    assert result.problem is None
    check_samples(events, length=3001, epochs=2)


def test_who_comes_to_a_team_whose_state_is_lost_ends_and_the_others_go_on():
    hang = Fault(worker=2, kind="hang", at_s=0.5, for_s=1e6)
    faults = [Fault(worker=1, kind="kill", at_s=0.4), hang]
    nodes = tuple(SimulatedNode(name=name, speed=0.2) for name in "abc")
    result, events = run_teams(
        Scenario(nodes=nodes, respawn_s=0.2),
        "percentage(0.2)",
        samples=6000,
        faults=faults,
        respawns=1,
    )
    assert result.problem is None
    check_samples(events, length=6000, epochs=2)


@pytest.mark.parametrize("mode", MODES)
def test_the_samples_of_a_team_that_dies_are_used_by_the_others(mode):
    faults = [Fault(worker=one, kind="kill", at_s=1.0) for one in (2, 3)]
    result, events = run_teams(two_sites(), mode, samples=30000, epochs=2, faults=faults)
    assert result.problem is None
    returned = [event for event in events if isinstance(event, LeaseReturned)]
    assert sum(event.stop - event.start for event in returned) > 0
    assert {event.team for event in returned} == {1}
    assert len(result.fired) == 2
    check_samples(events, length=30000, epochs=2)


def test_a_team_that_hangs_is_given_up_when_others_wait_for_it():
    faults = [Fault(worker=one, kind="hang", at_s=1.0, for_s=1e6) for one in (2, 3)]
    result, events = run_teams(two_sites(), "flexible", samples=30000, epochs=1, faults=faults)
    assert result.wall_s < 60
    assert any(isinstance(event, LeaseReturned) for event in events)
    failed = [e for e in events if isinstance(e, RoundEnded) and not e.is_committed]
    assert all("silent for" in event.reason for event in failed)
    check_samples(events, length=30000, epochs=1)


def test_a_team_goes_on_when_it_loses_its_leader_in_a_round():
    faults = [Fault(worker=2, kind="kill", step=40)]
    result, events = run_teams(two_sites(), "percentage(0.5)", samples=30000, faults=faults)
    assert [event.team for event in events if isinstance(event, Regrouped)] == [1]
    assert len(result.recoveries) == 1
    assert not any(isinstance(event, LeaseReturned) for event in events)
    check_samples(events, length=30000, epochs=2)


def test_the_run_ends_when_nobody_is_left():
    faults = [Fault(worker=one, kind="kill", at_s=0.5) for one in range(4)]
    result, events = run_teams(two_sites(), "flexible", samples=30000, faults=faults)
    assert result.problem == "no worker is left"
    assert isinstance(events[-1], RunEnded)
    assert events[-1].status == "failed"


def test_a_run_can_be_repeated():
    first, second = (run_teams(two_sites(noise=0.3), "flexible", seed=3)[1] for _ in range(2))
    assert first == second


def leases_of(events):
    return [one.stop - one.start for one in events if isinstance(one, SamplesLeased)]


@pytest.mark.parametrize("scheme", ["GSS", "SS", "WF2"])
def test_leases_by_a_scheme_use_each_sample_once_though_a_team_is_lost(scheme):
    faults = [Fault(worker=one, kind="kill", at_s=0.5) for one in (2, 3)]
    scenario = two_sites(speed=0.5)
    _, events = run_teams(scenario, "flexible", faults=faults, lease_scheme=scheme)
    check_samples(events, length=8000, epochs=2)
    assert any(isinstance(event, LeaseReturned) for event in events)
    _, usual = run_teams(scenario, "flexible", faults=faults)
    assert leases_of(events)[0] != leases_of(usual)[0]
