# SPDX-License-Identifier: Apache-2.0
"""Whose gradient is wrong: the rule, without any gradient."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.worker.checks.scrutiny import FACTOR, NOT_FINITE, UNSAID, Scrutiny, norm_of, size_of


def sizes(*norms: float) -> list[int]:
    return [size_of(norm * norm, 1.0) for norm in norms]


def wrong(scrutiny: Scrutiny, *norms: float) -> list[int]:
    found = scrutiny.judge(sizes(*norms), usual=scrutiny.usual)
    return [one.rank for one in found]


@given(st.floats(1e-100, 1e100), st.floats(1e-6, 1.0))
def test_a_size_stands_for_the_norm_whatever_the_share(norm: float, part: float) -> None:
    assert norm_of(size_of((norm * part) ** 2, part)) == pytest.approx(norm, rel=0.05)


@pytest.mark.parametrize("square", [math.inf, math.nan])
def test_a_size_says_that_a_gradient_is_not_finite(square: float) -> None:
    assert size_of(square, 0.5) == NOT_FINITE
    assert size_of(square, 0.0) == NOT_FINITE


def test_nothing_is_said_of_a_worker_without_samples_or_gradient() -> None:
    assert size_of(0.0, 0.5) == size_of(3.0, 0.0) == UNSAID


def test_a_member_is_wrong_from_the_first_step_on_when_it_dwarfs_the_others() -> None:
    assert wrong(Scrutiny(), 1.0, 1.3, 2.0 * FACTOR) == [2]
    assert wrong(Scrutiny(), 1.0, 1.3, 0.5 * FACTOR) == []


def test_a_member_is_wrong_every_time_when_it_never_stops() -> None:
    scrutiny = Scrutiny()
    for _ in range(200):
        assert wrong(scrutiny, 1e6, 1.0, 1.0) == [0], "what is wrong never becomes usual"


def test_two_of_four_are_wrong_when_both_dwarf_the_others() -> None:
    assert wrong(Scrutiny(), 1e6, 1.0, 1e9, 1.0) == [0, 2]


def test_nobody_is_wrong_when_the_training_diverges_everywhere() -> None:
    scrutiny = Scrutiny()
    assert wrong(scrutiny, 1.0, 1.0, 1.0) == []
    assert wrong(scrutiny, 1e9, 2e9, 3e9) == []


def test_nobody_is_wrong_when_a_rare_sample_has_a_gradient_that_was_usual_before() -> None:
    scrutiny = Scrutiny()
    assert wrong(scrutiny, 3.0, 2.0, 3.0) == []
    for _ in range(20):
        assert wrong(scrutiny, 1e-6, 1e-6, 1e-6) == []
    assert wrong(scrutiny, 1e-6, 2.0, 1e-6) == []


def test_nobody_is_wrong_when_there_is_nobody_to_compare_with() -> None:
    scrutiny = Scrutiny()
    assert wrong(scrutiny, 1.0, 1.0) == []
    assert wrong(scrutiny, 1e9, 0.0) == []
    assert wrong(scrutiny, 1e9) == []


def test_a_newcomer_judges_as_the_others_do_when_they_tell_it_what_is_usual() -> None:
    member, newcomer = Scrutiny(), Scrutiny()
    wrong(member, 5.0, 5.0)
    now = sizes(1e-6, 4.0, 1e-6)
    usual = max(member.usual, newcomer.usual)
    assert member.judge(now, usual=usual) == newcomer.judge(now, usual=usual) == []


def test_who_is_not_finite_is_wrong_even_when_all_are() -> None:
    found = Scrutiny().judge([NOT_FINITE, 5, NOT_FINITE], usual=UNSAID)
    assert [one.rank for one in found] == [0, 2]
    assert not any(one.is_finite for one in found)
    assert len(Scrutiny().judge([NOT_FINITE] * 2, usual=UNSAID)) == 2


def test_noise_is_never_wrong() -> None:
    rng = random.Random(1)
    scrutiny = Scrutiny()
    for step in range(2000):
        scale = 10.0 ** (-step / 500)
        norms = [scale * rng.lognormvariate(0, 1.0) for _ in range(4)]
        assert wrong(scrutiny, *norms) == []
