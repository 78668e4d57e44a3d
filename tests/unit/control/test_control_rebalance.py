# SPDX-License-Identifier: Apache-2.0
"""When a new cut is worth it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gangline.control import ControlOptions
from gangline.control.shares.rebalance import find_recut, is_worth_another_look, needed_certainty
from gangline.control.shares.speeds import unknown_speeds

OPTIONS = ControlOptions(global_batch=256)


def known_speeds(per_sample, *, error=0.01):
    """Speeds without a fixed part, each known with a relative standard error."""
    per_sample = np.array(per_sample)
    return msgspec.structs.replace(
        unknown_speeds(len(per_sample)),
        per_sample_s=per_sample,
        per_sample_variance=(error * per_sample) ** 2,
        observed=np.full(len(per_sample), 50),
    )


def recut(speeds, shares, *, ceilings=256, certainty=2.75, options=OPTIONS):
    return find_recut(
        speeds,
        np.array(shares),
        max_samples=np.full(len(shares), ceilings),
        options=options,
        certainty=certainty,
    )


def test_an_uneven_cluster_is_cut_anew():
    found = recut(known_speeds([1, 2, 5, 10]), [64] * 4)
    assert found is not None
    assert found.shares.tolist() == [143, 71, 28, 14]
    assert found.slowest == 3
    assert found.present_s == 640
    assert found.predicted_s == 143
    assert found.gain == pytest.approx(1 - 143 / 640)
    assert found.least_gain < found.gain


def test_the_best_cut_is_kept():
    assert recut(known_speeds([1, 2, 5, 10]), [143, 71, 28, 14]) is None


def test_a_difference_within_the_error_is_no_reason():
    uneven = [1, 1, 1, 1.1]
    assert recut(known_speeds(uneven, error=0.05), [64] * 4) is None
    assert recut(known_speeds(uneven, error=0.005), [64] * 4) is not None


def test_a_gain_below_the_minimum_is_no_reason():
    speeds = known_speeds([1, 1, 1, 1.1], error=0.001)
    assert recut(speeds, [64] * 4) is not None
    demanding = ControlOptions(global_batch=256, minimum_gain=0.2)
    assert recut(speeds, [64] * 4, options=demanding) is None


def test_nothing_is_gained_when_the_ceilings_leave_no_other_cut():
    assert recut(known_speeds([1, 2, 5, 10]), [64] * 4, ceilings=64) is None


def test_no_share_grows_more_than_fourfold_at_once():
    found = recut(known_speeds([0.001, 1, 1, 1], error=0.001), [4, 84, 84, 84])
    assert found is not None
    assert found.shares.tolist() == [16, 80, 80, 80]


def test_a_worker_without_a_share_can_get_one():
    found = recut(known_speeds([1, 10]), [0, 5], options=ControlOptions(global_batch=5, minimum=3))
    assert found is not None
    assert found.shares.tolist() == [5, 0]


@pytest.mark.parametrize(
    ("observations", "at_last_look", "expected"),
    [
        pytest.param(100, 0, False, id="not cut from observations"),
        pytest.param(5, 3, False, id="little more"),
        pytest.param(6, 3, True, id="twice as many"),
        pytest.param(3, 40, True, id="a worker changed"),
    ],
)
def test_a_cut_is_looked_at_again_when_knowledge_doubled_or_fell(
    observations, at_last_look, expected
):
    assert is_worth_another_look(observations, at_last_look=at_last_look) is expected


def test_more_workers_need_more_certainty():
    certain = [needed_certainty(count, is_doubtful=False) for count in (1, 2, 4, 100, 10_000)]
    doubtful = [needed_certainty(count, is_doubtful=True) for count in (1, 2, 4, 100, 10_000)]
    assert certain == sorted(certain)
    assert doubtful[0] == pytest.approx(0)
    assert all(low < high for low, high in zip(doubtful, certain, strict=True))
    assert 5 < certain[-1] < 6
