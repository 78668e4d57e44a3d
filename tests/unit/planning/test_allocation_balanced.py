# SPDX-License-Identifier: Apache-2.0
"""`balanced`: the optimum of the step-time model, in whole samples."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.planning.allocation.balanced import _bracket
from gangline.planning.allocation.policies import balanced, slowest_s
from gangline.planning.allocation.proportional import equal
from gangline.planning.allocation.water import water_level
from gangline.spec.errors import UsageError

FIXED = st.floats(0, 10, allow_subnormal=False)
PER_SAMPLE = st.floats(1e-6, 10)
WORKERS = st.lists(st.tuples(FIXED, PER_SAMPLE), min_size=1, max_size=12)
ROUNDING = 1e-9


def best_by_trying_all(total, fixed, per_sample, least, most):
    ranges = [range(low, min(high, total) + 1) for low, high in zip(least, most, strict=True)]
    cuts = (cut for cut in product(*ranges) if sum(cut) == total)
    return min(slowest_s(cut, fixed, per_sample) for cut in cuts)


@given(workers=WORKERS, total=st.integers(0, 500), minimum=st.integers(0, 3))
def test_shares_sum_to_the_batch_and_none_is_negative(workers, total, minimum):
    fixed, per_sample = zip(*workers, strict=True)
    shares = balanced(total, fixed, per_sample, minimum=minimum)
    assert shares.sum() == total
    assert (shares >= 0).all()
    if total >= minimum * len(workers):
        assert (shares >= minimum).all()


@settings(deadline=None)
@given(data=st.data())
def test_no_other_cut_is_faster_when_all_are_tried(data):
    count = data.draw(st.integers(1, 4))
    each = {"min_size": count, "max_size": count}
    fixed = data.draw(st.lists(FIXED, **each))
    per_sample = data.draw(st.lists(PER_SAMPLE, **each))
    least = data.draw(st.lists(st.integers(0, 2), **each))
    most = [low + data.draw(st.integers(0, 9)) for low in least]
    total = data.draw(st.integers(sum(least), sum(most)))
    shares = balanced(total, fixed, per_sample, minimum=least, maximum=most)
    assert shares.sum() == total
    assert ((shares >= least) & (shares <= most)).all()
    best = best_by_trying_all(total, fixed, per_sample, least, most)
    assert slowest_s(shares, fixed, per_sample) <= best * (1 + ROUNDING)


@given(workers=WORKERS, total=st.integers(0, 300), order=st.randoms(use_true_random=False))
def test_relabelled_workers_get_the_same_times(workers, total, order):
    moved = list(workers)
    order.shuffle(moved)
    times = []
    for some in (workers, moved):
        fixed, per_sample = (np.array(part) for part in zip(*some, strict=True))
        shares = balanced(total, fixed, per_sample, minimum=0)
        times.append(np.sort(fixed + per_sample * shares))
    np.testing.assert_allclose(times[0], times[1], rtol=ROUNDING)


def test_relabelled_workers_keep_their_shares_when_all_differ():
    fixed, per_sample = np.array([0.1, 0.3, 0.0, 0.2]), np.array([1.0, 0.7, 2.1, 0.45])
    order = np.array([2, 0, 3, 1])
    shares = balanced(97, fixed, per_sample)
    np.testing.assert_array_equal(balanced(97, fixed[order], per_sample[order]), shares[order])


@given(workers=WORKERS, total=st.integers(0, 500), minimum=st.integers(0, 2))
def test_a_faster_worker_never_gets_less(workers, total, minimum):
    fixed, per_sample = (np.array(part) for part in zip(*workers, strict=True))
    shares = balanced(total, fixed, per_sample, minimum=minimum)
    for i, j in product(range(len(workers)), repeat=2):
        clearly = per_sample[i] < per_sample[j] * (1 - ROUNDING)
        if fixed[i] <= fixed[j] and clearly:
            assert shares[i] >= shares[j]


@given(worker=st.tuples(FIXED, PER_SAMPLE), count=st.integers(1, 20), total=st.integers(0, 500))
def test_equal_workers_get_shares_that_differ_by_one_at_most(worker, count, total):
    shares = balanced(total, [worker[0]] * count, [worker[1]] * count, minimum=0)
    assert shares.max() - shares.min() <= 1


@given(workers=WORKERS, total=st.integers(0, 500))
def test_never_slower_than_equal_shares_under_the_model(workers, total):
    fixed, per_sample = zip(*workers, strict=True)
    ours = slowest_s(balanced(total, fixed, per_sample, minimum=0), fixed, per_sample)
    even = slowest_s(equal(total, len(workers)), fixed, per_sample)
    assert ours <= even * (1 + ROUNDING)


def test_all_finish_together_when_the_batch_is_large():
    fixed, per_sample = [0.002, 0.004, 0.01, 0.02], [0.0002, 0.0004, 0.001, 0.002]
    shares = balanced(100_000, fixed, per_sample)
    times = np.array(fixed) + np.array(per_sample) * shares
    assert np.ptp(times) <= max(per_sample)


def test_a_worker_gets_its_minimum_only_when_its_fixed_cost_is_above_the_optimum():
    assert balanced(20, [0, 0, 50], [1, 1, 0.01]).tolist() == [10, 9, 1]
    assert balanced(200, [0, 0, 50], [1, 1, 0.01]).tolist() == [50, 50, 100]


def test_a_ceiling_below_the_minimum_holds():
    assert balanced(32, 0, [1, 1, 1], minimum=8, maximum=[32, 6, 32]).tolist() == [13, 6, 13]


def test_a_ceiling_sends_the_rest_to_the_others():
    assert balanced(100, 0, [1, 1, 1], maximum=[10, 100, 100]).tolist() == [10, 45, 45]
    assert balanced(30, 0, [1, 1, 1], maximum=10).tolist() == [10, 10, 10]


def test_the_fastest_take_part_when_the_batch_is_below_the_minimums():
    slow_to_fast = [8, 4, 2, 1]
    assert balanced(5, 0, slow_to_fast, minimum=2).tolist() == [0, 0, 2, 3]
    assert balanced(3, 0, slow_to_fast, minimum=1).tolist() == [0, 1, 1, 1]


def test_one_worker_takes_all_when_the_batch_is_below_a_single_minimum():
    assert balanced(1, 0, [2, 1, 3], minimum=2).tolist() == [0, 1, 0]


def test_an_empty_batch_gives_nobody_anything():
    assert balanced(0, 0, [2, 1, 3]).tolist() == [0, 0, 0]


def test_nothing_overflows_when_speeds_are_many_orders_apart():
    shares = balanced(10_000, [0, 1, 0], [1e-300, 1e-3, 1e6], minimum=1)
    assert shares.tolist() == [9998, 1, 1]
    capped = balanced(10_000, [0, 1, 0], [1e-300, 1e-3, 1e6], maximum=[5, 9000, 9000])
    assert capped.tolist() == [5, 9000, 995]


def test_equal_times_are_shared_out_when_one_sample_is_below_the_rounding_of_the_level():
    shares = balanced(1000, [1e9, 1e9], [1e-12, 1e-12])
    assert shares.sum() == 1000
    assert (shares > 0).all()


def test_the_level_is_found_when_the_running_sums_have_lost_it():
    level = water_level(
        11.5,
        floor=np.array([0.0, 0.0, 1e6]),
        rate=np.array([1e12, 0.3, 1.0]),
        least=np.array([0, 0, 0]),
        most=np.array([5, 5, 100]),
    )
    assert 5 / 0.3 <= level <= 1e6 + 1.5


def test_the_bracket_closes_when_it_starts_from_a_wrong_level():
    def done_by(time):
        return np.array([int(time), int(time / 2)])

    for level in (0.0, 1000.0):
        below, above = _bracket(30, level, done_by=done_by, width=1.0)
        assert below.sum() <= 30 <= above.sum()
        assert (above - below).max() <= 1


def test_ten_thousand_workers_are_cut_exactly():
    rng = np.random.default_rng(3)
    fixed, per_sample = rng.uniform(0, 0.01, 10_000), 10 ** rng.uniform(-5, -2, 10_000)
    shares = balanced(1_000_000, fixed, per_sample)
    worst = slowest_s(shares, fixed, per_sample)
    assert shares.sum() == 1_000_000
    floor_s = slowest_s(1, fixed, per_sample)
    next_s = (fixed + per_sample * (shares + 1)).min()
    assert worst <= max(floor_s, next_s)


@pytest.mark.parametrize(
    ("arguments", "bounds", "message"),
    [
        pytest.param((10, [], []), {}, "at least one worker", id="nobody"),
        pytest.param((-1, 0, [1]), {}, "not be negative, but is -1", id="negative batch"),
        pytest.param((5, 0, [1, 0]), {}, r"worker 1 has the step time 0.0 \+ 0.0·n", id="free"),
        pytest.param((5, [-1, 0], 1), {}, r"worker 0 has the step time -1.0", id="negative cost"),
        pytest.param((5, 0, [1, np.nan]), {}, "worker 1 has the step time", id="not a number"),
        pytest.param(
            (50, 0, [1, 1]),
            {"maximum": [10, 20]},
            r"batch of 50 samples does not fit.* at most 10 \+ 20 = 30; lower the global batch",
            id="over the ceilings",
        ),
        pytest.param((50, 0, [1] * 9), {"maximum": 5}, "at most 45 in all", id="many ceilings"),
        pytest.param(
            (5, 0, [1, 1]),
            {"minimum": 2, "maximum": [5, -1]},
            "worker 1 must get at least 2 and at most -1 samples",
            id="ceiling below 0",
        ),
        pytest.param((5, 0, [1]), {"minimum": -1}, "worker 0 must get at least -1", id="minimum"),
    ],
)
def test_the_message_names_the_numbers_when_there_is_no_such_cut(arguments, bounds, message):
    with pytest.raises(UsageError, match=message):
        balanced(*arguments, **bounds)
