# SPDX-License-Identifier: Apache-2.0
"""The teams' parts of the global batch: exact in sum, by speed, and changed only where it pays."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.control import ControlOptions, ControlState, StepMeasured, WorkersJoined, decide
from gangline.control.shares.parts import (
    divide,
    divide_by_speed,
    is_worth_changing,
    least_parts,
    least_share,
    paces,
)
from gangline.spec.errors import UsageError

SPEEDS = st.dictionaries(st.integers(0, 9), st.floats(1e-3, 1e3), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(speeds=SPEEDS, minimum=st.integers(1, 4), spare=st.integers(0, 300))
def test_parts_add_up_and_are_never_below_the_least(
    speeds: dict[int, float], minimum: int, spare: int
) -> None:
    least = dict.fromkeys(speeds, minimum)
    total = minimum * len(speeds) + spare
    parts = divide(total, speeds, least)
    assert sum(parts.values()) == total
    assert all(parts[team] >= minimum for team in speeds)


def test_parts_are_in_proportion_to_the_speeds() -> None:
    assert divide(100, {0: 1.0, 1: 3.0}, {0: 1, 1: 1}) == {0: 25, 1: 75}
    assert divide(10, {4: 1.0, 2: 1.0, 3: 1.0}, {2: 1, 3: 1, 4: 1}) == {4: 3, 2: 4, 3: 3}


def test_a_slow_team_gets_its_least_and_the_others_the_rest() -> None:
    parts = divide(100, {0: 1e-6, 1: 1.0, 2: 1.0}, {0: 4, 1: 2, 2: 2})
    assert parts == {0: 4, 1: 48, 2: 48}


def test_the_same_parts_come_out_whatever_the_order_of_the_teams() -> None:
    least = {0: 1, 1: 1, 2: 1}
    speeds = {0: 1.0, 1: 1.0, 2: 1.0}
    backwards = dict(reversed(speeds.items()))
    assert divide(20, speeds, least) == divide(20, backwards, least)


def test_a_batch_that_is_too_small_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        UsageError,
        match="a global batch of 3 cannot be divided among 2 teams that need 4 samples at least",
    ):
        divide(3, {0: 1.0, 1: 1.0}, {0: 2, 1: 2})


def test_each_worker_of_a_team_has_the_least_share_where_the_batch_has_room() -> None:
    assert least_parts(32, {0: 1, 1: 2}, minimum=8) == {0: 8, 1: 16}
    assert least_parts(32, {0: 1, 1: 4}, minimum=8) == {0: 6, 1: 24}, "two have joined"
    assert least_parts(3, {0: 1, 1: 1}, minimum=2) == {0: 2, 1: 2}, "the batch is too small"
    assert least_parts(3, {0: 2, 1: 2}, minimum=1) == {0: 2, 1: 2}, "the batch is too small"


def team(members: tuple[int, ...], per_sample_s: dict[int, float], *, steps: int) -> ControlState:
    """A team of which so many steps were measured."""
    options = ControlOptions(global_batch=8 * len(members), allocation="equal")
    state, _ = decide(
        ControlState.begin(options),
        WorkersJoined(workers=members, max_samples=(10_000,) * len(members)),
        0.0,
    )
    for step in range(steps):
        view = state.view
        assert view is not None
        samples = np.array(view.shares)
        times = np.array([per_sample_s[member] for member in members]) * samples
        state, _ = decide(
            state,
            StepMeasured(
                step=step, view=view.number, workers=members, samples=samples, compute_s=times
            ),
            float(step),
        )
    return state


def test_a_teams_part_is_what_its_members_can_do_as_in_one_group() -> None:
    costs = {0: 0.001, 1: 0.001, 2: 0.002, 3: 0.004}
    teams = {
        0: team((0, 1), costs, steps=40),
        5: team((2,), costs, steps=40),
        7: team((3,), costs, steps=40),
    }
    parts = divide_by_speed(110, teams)
    assert parts is not None
    assert sum(parts.values()) == 110
    assert parts == {
        0: pytest.approx(80, abs=3),
        5: pytest.approx(20, abs=2),
        7: pytest.approx(10, abs=2),
    }


def test_a_slow_team_makes_fewer_steps_rather_than_steps_of_a_few_samples() -> None:
    costs = {0: 0.001, 1: 0.001, 2: 0.001, 3: 0.1}
    teams = {worker: team((worker,), costs, steps=40) for worker in costs}
    by_speed = divide_by_speed(128, teams)
    assert by_speed is not None
    assert by_speed[3] <= 2
    least = least_share(128, 4, minimum=1)
    assert least == 16, "half of an equal part"
    parts = divide_by_speed(128, teams, minimum=least)
    assert parts is not None
    assert parts[3] == 16
    assert sum(parts.values()) == 128
    assert least_share(128, 4, minimum=20) == 20


def test_a_workers_memory_goes_before_its_least_share() -> None:
    costs = {0: 0.001, 1: 0.1}
    small = msgspec.structs.replace(team((1,), costs, steps=40), max_samples=np.array([5]))
    parts = divide_by_speed(64, {0: team((0,), costs, steps=40), 1: small}, minimum=16)
    assert parts == {0: 59, 1: 5}


def test_the_pace_of_a_team_is_what_it_makes_with_its_present_part() -> None:
    costs = {0: 0.001, 1: 0.004}
    found = paces({0: team((0,), costs, steps=40), 1: team((1,), costs, steps=40)})
    assert found is not None
    assert found[0] / found[1] == pytest.approx(4, rel=0.1)
    assert paces({0: team((0,), costs, steps=0)}) is None


def test_nothing_is_divided_before_enough_was_measured() -> None:
    costs = {0: 0.001, 1: 0.001}
    assert (
        divide_by_speed(16, {0: team((0,), costs, steps=40), 1: team((1,), costs, steps=0)}) is None
    )


def test_parts_are_changed_where_one_is_off_by_more_than_a_tenth() -> None:
    assert not is_worth_changing({0: 100, 1: 100}, {0: 109, 1: 91})
    assert is_worth_changing({0: 100, 1: 100}, {0: 111, 1: 89})
    assert is_worth_changing({0: 150, 1: 50}, {0: 144, 1: 56})
    assert not is_worth_changing({0: 3, 1: 3}, {0: 4, 1: 2}), "one sample is no reason"
