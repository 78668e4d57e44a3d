# SPDX-License-Identifier: Apache-2.0
"""`proportional`, `equal` and `drawn`: shares in proportion to weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.planning.allocation.policies import proportional
from gangline.planning.allocation.proportional import drawn, equal
from gangline.spec.errors import UsageError

WEIGHTS = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=12).filter(any)


@given(weights=WEIGHTS, total=st.integers(0, 1000))
def test_every_share_is_its_quota_rounded_up_or_down(weights, total):
    shares = proportional(total, weights)
    quota = total * np.array(weights) / sum(weights)
    assert shares.sum() == total
    assert (np.abs(shares - quota) < 1 + 1e-6).all()


@given(weights=WEIGHTS, total=st.integers(0, 1000), minimum=st.integers(0, 3))
def test_a_heavier_worker_never_gets_less(weights, total, minimum):
    shares = proportional(total, weights, minimum=minimum)
    order = np.argsort(weights, kind="stable")
    heavier = np.diff(np.array(weights)[order]) > 1e-6 * max(weights)
    assert (np.diff(shares[order])[heavier] >= 0).all()


@given(weights=WEIGHTS, total=st.integers(0, 1000), order=st.randoms(use_true_random=False))
def test_relabelled_workers_get_the_same_shares_but_for_ties(weights, total, order):
    moved = list(weights)
    order.shuffle(moved)
    first, second = (np.sort(proportional(total, w)) for w in (weights, moved))
    assert np.abs(first - second).max() <= 1
    assert first.sum() == second.sum() == total


@given(data=st.data(), count=st.integers(1, 8))
def test_minimums_and_ceilings_hold_when_they_leave_room(data, count):
    each = {"min_size": count, "max_size": count}
    weights = data.draw(st.lists(st.floats(1e-12, 1e12), **each))
    least = data.draw(st.lists(st.integers(0, 5), **each))
    most = [low + data.draw(st.integers(0, 50)) for low in least]
    total = data.draw(st.integers(sum(least), sum(most)))
    shares = proportional(total, weights, minimum=least, maximum=most)
    assert shares.sum() == total
    assert ((shares >= least) & (shares <= most)).all()


def test_the_largest_remainders_get_the_rest():
    assert proportional(10, [1, 1, 1]).tolist() == [4, 3, 3]
    assert proportional(7, [0.5, 0.3, 0.2]).tolist() == [4, 2, 1]
    assert proportional(256, [1, 0.5, 0.2, 0.1], minimum=1).tolist() == [142, 71, 29, 14]


def test_whole_quotas_stay_whole():
    assert proportional(300, [0.1, 0.2, 0.3, 0.4]).tolist() == [30, 60, 90, 120]


def test_the_heaviest_take_part_when_the_batch_is_below_the_minimums():
    assert proportional(4, [1, 3, 2], minimum=2).tolist() == [0, 2, 2]
    assert proportional(1, [1, 3, 2], minimum=2).tolist() == [0, 1, 0]


def test_a_weight_of_zero_gets_the_minimum_only():
    assert proportional(10, [0, 1, 1], minimum=2).tolist() == [2, 4, 4]
    assert proportional(9, [0, 1, 2]).tolist() == [0, 3, 6]


def test_equal_shares_differ_by_one_at_most():
    assert equal(10, 4).tolist() == [3, 3, 2, 2]
    assert equal(10, 4, maximum=[1, 9, 9, 9]).tolist() == [1, 3, 3, 3]


def test_a_draw_is_whole_and_repeatable_when_the_generator_is_seeded():
    first, second, other = (
        drawn(256, 4, rng=np.random.default_rng(seed), minimum=2).tolist() for seed in (7, 7, 8)
    )
    assert first == second != other
    assert sum(first) == 256
    assert min(first) >= 2


def test_draws_are_even_on_average():
    rng = np.random.default_rng(0)
    mean = np.mean([drawn(100, 4, rng=rng) for _ in range(2000)], axis=0)
    np.testing.assert_allclose(mean, 25, atol=1.5)


@pytest.mark.parametrize(
    ("weights", "bounds", "message"),
    [
        pytest.param([], {}, "at least one worker", id="nobody"),
        pytest.param([0, 0], {}, "weights of all 2 workers are 0", id="all zero"),
        pytest.param([1, -1], {}, r"worker 1 has the weight -1.0", id="negative"),
        pytest.param([1, np.inf], {}, "worker 1 has the weight inf", id="infinite"),
        pytest.param([1, 1], {"maximum": 3}, r"at most 3 \+ 3 = 6", id="over the ceilings"),
        pytest.param(
            [0, 1],
            {"maximum": [100, 4]},
            "weight above 0 can hold at most 4 .*give more workers a weight",
            id="only a weightless worker has room",
        ),
    ],
)
def test_the_message_names_the_numbers_when_there_is_no_such_cut(weights, bounds, message):
    with pytest.raises(UsageError, match=message):
        proportional(10, weights, **bounds)
