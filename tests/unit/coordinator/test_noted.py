# SPDX-License-Identifier: Apache-2.0
"""What scripts log reaches the status as means over all samples of a step."""

from __future__ import annotations

import math

import pytest
from federations import TeamRoom

from gangline.coordinator.reports.noted import MAX_NAMES, NotedValues
from gangline.protocol.messages import Noted


def noted(step: int, samples: int, value: float, *, view: int = 0, name: str = "loss") -> Noted:
    return Noted(step=step, samples=samples, values={name: value}, view=view)


def test_a_mean_is_weighted_by_samples() -> None:
    values = NotedValues()
    values.note(-1, 0, noted(0, 30, 1.0), teams={-1})
    values.note(-1, 1, noted(0, 10, 5.0), teams={-1})
    assert values.newest({-1}) == {"loss": 2.0}


def test_a_step_that_not_all_have_told_of_is_not_shown_yet() -> None:
    values = NotedValues()
    for worker in (0, 1):
        values.note(-1, worker, noted(0, 10, 1.0), teams={-1})
    values.note(-1, 0, noted(1, 10, 9.0), teams={-1})
    assert values.newest({-1}) == {"loss": 1.0}


def test_of_a_step_that_is_done_again_the_last_time_counts() -> None:
    values = NotedValues()
    values.note(-1, 2, noted(3, 10, 100.0, view=0), teams={-1})  # finished it alone, and was lost
    values.note(-1, 0, noted(3, 10, 1.0, view=1), teams={-1})
    values.note(-1, 1, noted(3, 20, 4.0, view=1), teams={-1})
    values.note(-1, 2, noted(3, 10, 100.0, view=0), teams={-1})
    assert values.newest({-1}) == {"loss": 3.0}


def test_teams_are_averaged_and_those_that_are_no_more_are_forgotten() -> None:
    values = NotedValues()
    values.note(0, 0, noted(7, 10, 1.0), teams={0, 1})
    values.note(1, 1, noted(4, 30, 5.0), teams={0, 1})
    assert values.newest({0, 1}) == {"loss": 4.0}
    assert values.newest({0}) == {"loss": 1.0}


def test_what_is_not_finite_is_none_and_names_have_an_end() -> None:
    values = NotedValues()
    for number in range(MAX_NAMES + 10):
        values.note(-1, 0, noted(0, 1, math.nan, name=f"n{number}"), teams={-1})
    assert len(values.newest({-1})) == MAX_NAMES
    assert set(values.newest({-1}).values()) == {None}


@pytest.mark.parametrize("sync", ["full", "none"])
def test_the_status_has_it(sync: str) -> None:
    room = TeamRoom(2, sync=sync)
    for worker in (0, 1):
        room.hello(worker)
    for worker in (0, 1):
        room.ready(worker)
    room.say(0, noted(0, 9, 1.0))
    room.say(1, noted(0, 3, 5.0))
    assert room.hub.status().logged == {"loss": 2.0}
