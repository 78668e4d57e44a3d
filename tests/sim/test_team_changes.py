# SPDX-License-Identifier: Apache-2.0
"""Simulated teams are led by the coordinator of a real run: levels, switching, `auto`, spares."""

from __future__ import annotations

import pytest
from team_scenarios import check_samples, four_racks, run_teams, two_sites

from gangline.simulation import Scenario
from gangline.simulation.course import Switch
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.event import Decision, Regrouped, RoundEnded, StepDone
from gangline.spec.faults import Fault
from gangline.spec.sync import parse_sync


def decisions(events, what):
    return [event for event in events if isinstance(event, Decision) and event.what == what]


def teams_of(events, *, after_s=0.0):
    """The workers of each team that makes steps."""
    teams = {}
    for event in events:
        if isinstance(event, StepDone) and event.t >= after_s:
            teams.setdefault(event.team, set()).add(event.worker)
    return list(teams.values())


def test_racks_are_merged_often_and_sites_rarely():
    _, events = run_teams(four_racks(), "percentage(0.5)/percentage(0.02)", samples=20000)
    ended = [event for event in events if isinstance(event, RoundEnded) and not event.is_whole]
    within = [event for event in ended if len(event.offsets) == 2]
    over_all = [event for event in ended if len(event.offsets) == 4]
    assert len(within) > 2 * len(over_all) > 0
    check_samples(events, length=20000, epochs=2)


def test_racks_of_a_site_that_are_in_step_are_one_team():
    _, events = run_teams(four_racks(), "full/flexible", samples=8000)
    assert teams_of(events) == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    check_samples(events, length=8000, epochs=2)


@pytest.mark.parametrize(
    ("before", "after", "teams"),
    [
        ("flexible", "percentage(0.1)", [{0, 1}, {2, 3}]),
        ("flexible", "full", [{0, 1, 2, 3}]),
        ("full", "flexible", [{0, 1}, {2, 3}]),
    ],
)
def test_an_operator_can_switch_how_teams_are_held_together(before, after, teams):
    switches = (Switch(at_s=1.0, sync=after),)
    result, events = run_teams(two_sites(), before, samples=20000, switches=switches)
    assert result.problem is None
    (said,) = decisions(events, "set_sync")
    assert said.t == pytest.approx(1.0)
    assert said.reason.endswith(f"by {parse_sync(after)}")
    assert sorted(teams_of(events, after_s=2.0), key=min) == teams
    check_samples(events, length=20000, epochs=2)


def test_a_switch_that_cannot_be_ends_the_run_with_the_reason():
    scenario = Scenario(nodes=(SimulatedNode(name="a"),))
    result, _ = run_teams(scenario, "full", switches=(Switch(at_s=0.1, sync="flexible"),))
    assert result.problem is not None
    assert "its workers are one group" in result.problem


def test_auto_parts_the_workers_when_their_exchanges_are_slow():
    result, events = run_teams(two_sites(bytes_per_s=1e6), "auto", samples=15000)
    chosen = [event.reason for event in decisions(events, "choose_sync")]
    assert chosen[0] == "no link is known: all workers stay in step"
    assert "apart, each at its own pace, all would make about" in chosen[-1]
    assert sorted(teams_of(events), key=sorted) == [{0, 1}, {0, 1, 2, 3}, {2, 3}]
    early, late = result.epoch_s
    assert late < early / 2
    check_samples(events, length=15000, epochs=2)


def test_a_team_goes_on_without_a_member_that_hangs_and_takes_it_back():
    faults = [Fault(worker=3, kind="hang", at_s=1.0, for_s=3.0)]
    result, events = run_teams(two_sites(), "flexible", samples=40000, faults=faults)
    alone = [e for e in events if isinstance(e, StepDone) and e.worker == 2 and 3.2 < e.t < 4.0]
    assert alone
    assert [len(event.members) for event in events if isinstance(event, Regrouped)] == [1, 2, 2]
    assert [one.lost for one in result.recoveries] == [(3,)]
    check_samples(events, length=40000, epochs=2)


def test_a_worker_that_is_too_slow_for_its_team_is_put_out():
    nodes = (
        SimulatedNode(name="a", workers=4, group="a"),
        SimulatedNode(name="b", workers=2, group="b"),
    )
    faults = [Fault(worker=3, kind="slow", step=100, to=0.05, for_steps=10_000)]
    _, events = run_teams(
        Scenario(nodes=nodes), "flexible", samples=160_000, global_batch=384, faults=faults
    )
    (excluded,) = decisions(events, "exclude")
    later = [e for e in events if isinstance(e, StepDone) and e.t > excluded.t + 1]
    assert {event.worker for event in later} == {0, 1, 2, 4, 5}
    check_samples(events, length=160_000, epochs=2)


def test_a_team_waits_for_a_member_that_is_cut_from_the_coordinator():
    faults = [Fault(worker=0, kind="cut", at_s=0.5, for_s=1.5)]
    result, events = run_teams(two_sites(), "percentage(0.2)", samples=20000, faults=faults)
    assert result.problem is None
    assert not any(isinstance(event, Regrouped) for event in events)
    check_samples(events, length=20000, epochs=2)


def test_a_worker_that_is_started_again_enters_the_team_of_the_dead_one():
    faults = [Fault(worker=3, kind="kill", at_s=0.5)]
    scenario = two_sites(respawn_s=1.0)
    _, events = run_teams(scenario, "flexible", samples=40000, faults=faults, respawns=1)
    steps = [event for event in events if isinstance(event, StepDone) and event.worker == 4]
    assert {event.team for event in steps} == {1}
    check_samples(events, length=40000, epochs=2)
