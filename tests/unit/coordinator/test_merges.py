# SPDX-License-Identifier: Apache-2.0
"""Which rounds are opened when: one at a time for every team, and higher levels first."""

from __future__ import annotations

from typing import Any

from gangline.control.sync.rounds import RoundClock
from gangline.coordinator.teams.merges import Merges, Scope
from gangline.spec.sync import parse_sync

SYNC = parse_sync("percentage(0.5)/percentage(0.1)")
SITES = ((0, 1), (2, 3))


class FakeTeam:
    """A team of one worker."""

    def __init__(self, number: int) -> None:
        self.number = self.leader = number
        self.batch = 3
        self.reached = None


def merges() -> Merges:
    def scope(level: int, teams: tuple[int, ...]) -> Scope:
        clock = RoundClock(SYNC.rates[level], global_batch=3 * len(teams), now=0.0)
        return Scope(level, teams, clock)

    return Merges([scope(1, (0, 1, 2, 3)), *(scope(0, site) for site in SITES)])


def step(found: Merges, *, of: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    for team in of:
        for scope in found.of(team):
            scope.clock.add_samples(3)


def due(found: Merges, teams: Any) -> list[tuple[int, ...]]:
    return [tuple(sorted(scope.teams)) for scope in found.find_due(teams, 1.0)]


def test_lower_levels_are_merged_oftener_and_each_site_for_itself() -> None:
    found, teams = merges(), [FakeTeam(number) for number in range(4)]
    assert due(found, teams) == []
    for _ in range(2):
        step(found, of=(0, 1))
    assert due(found, teams) == [(0, 1)]
    for _ in range(2):
        step(found, of=(2, 3))
    assert sorted(due(found, teams)) == [(0, 1), (2, 3)]


def test_a_higher_level_goes_before_the_lower_ones() -> None:
    found, teams = merges(), [FakeTeam(number) for number in range(4)]
    for _ in range(10):
        step(found)
    assert due(found, teams) == [(0, 1, 2, 3)]


def test_a_higher_level_waits_for_rounds_that_are_open_and_no_other_is_opened() -> None:
    found, teams = merges(), [FakeTeam(number) for number in range(4)]
    for _ in range(2):
        step(found)
    low = found.scopes[0]
    one = low.open(0, [teams[0], teams[1]], 1.0, is_whole=False)  # type: ignore[list-item]
    for _ in range(10):
        step(found)
    assert due(found, teams) == [], "team 0 is in a round, and sites are not merged before all"
    assert found.find(0) == (low, one)
    assert found.is_waiting_for(0)
    assert not found.is_waiting_for(2)
    low.close(one, is_committed=True, sync=SYNC)
    assert due(found, teams) == [(0, 1, 2, 3)]


def test_a_site_of_one_team_is_not_merged() -> None:
    found, teams = merges(), [FakeTeam(number) for number in (0, 2, 3)]
    for _ in range(2):
        step(found)
    assert due(found, teams) == [(2, 3)]


def test_a_team_that_waits_for_the_others_is_in_no_round_beside() -> None:
    found, teams = merges(), [FakeTeam(number) for number in range(4)]
    for _ in range(10):
        step(found)
    teams[3].reached = object()  # type: ignore[assignment]
    assert due(found, teams) == [(0, 1)]


def test_another_mode_of_the_same_levels_is_told_by_a_round() -> None:
    found, teams = merges(), [FakeTeam(number) for number in range(4)]
    found.set_rates(parse_sync("none/flexible"))
    assert [scope.clock.sync.kind for scope in found.scopes] == ["none", "none", "flexible"]
    assert due(found, teams) == [(0, 1, 2, 3)]
