# SPDX-License-Identifier: Apache-2.0
"""KQV: the published equations, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.planning.allocation.kqv import kqv, kqv_weights, star_latency
from gangline.spec.errors import UsageError

EVEN = {
    "operations_per_s": [5e9] * 4,
    "memory_bytes": [1e9] * 4,
    "latency_s": star_latency([1e-3] * 4),
}


def test_even_workers_get_two_thirds_of_the_baseline():
    # K = 1/4, MW = 3/4, and of NCW only the j = i term is not 0.
    np.testing.assert_allclose(kqv_weights(**EVEN), 2.0)
    assert kqv(64, **EVEN).tolist() == [42, 42, 42, 42]


def test_uneven_workers_get_what_the_equations_say():
    latency = np.array([[0, 2, 4], [1, 0, 1], [4, 3, 0]]) * 1e-3
    weights = kqv_weights(operations_per_s=[6, 3, 1], memory_bytes=[1, 1, 2], latency_s=latency)
    # K = .6 .3 .1; MW = .75 .75 .5; ΣNCW = (1 + .5 + 0), (0 + 1 + 0), (0 + .25 + 1).
    np.testing.assert_allclose(weights, [2.85, 2.05, 1.85])
    shares = kqv(100, operations_per_s=[6, 3, 1], memory_bytes=[1, 1, 2], latency_s=latency)
    assert shares.tolist() == [95, 68, 61]


def test_the_maximum_is_over_a_workers_own_links():
    near_and_far = np.array([[0, 1, 1], [1, 0, 9], [1, 9, 0]])
    weights = kqv_weights(operations_per_s=[1] * 3, memory_bytes=[1] * 3, latency_s=near_and_far)
    # A cluster-wide maximum would give worker 0 the sum 1 + 8/9 + 8/9.
    np.testing.assert_allclose(weights, [2.0, 2 + 8 / 9, 2 + 8 / 9])


def test_nothing_counts_against_a_worker_when_nothing_was_measured_against_it():
    weights = kqv_weights(operations_per_s=[1, 1], memory_bytes=[0, 0], latency_s=np.zeros((2, 2)))
    np.testing.assert_allclose(weights, 0.5 + 1 + 2)


def test_nobody_gets_less_than_one_sample():
    shares = kqv(1, operations_per_s=[1, 0], memory_bytes=[0, 1], latency_s=star_latency([1, 1]))
    assert shares.tolist() == [1, 1]


def test_a_single_worker_gets_two_thirds():
    assert kqv(96, operations_per_s=[1], memory_bytes=[5], latency_s=[[0]]).tolist() == [64]


@given(data=st.data(), count=st.integers(1, 6))
def test_relabelled_workers_keep_their_weights(data, count):
    each = {"min_size": count, "max_size": count}
    positive = st.floats(0.01, 100)
    operations, memory, latency = (
        np.array(data.draw(st.lists(positive, **each))) for _ in range(3)
    )
    order = np.array(data.draw(st.permutations(range(count))))
    first = kqv_weights(
        operations_per_s=operations, memory_bytes=memory, latency_s=star_latency(latency)
    )
    second = kqv_weights(
        operations_per_s=operations[order],
        memory_bytes=memory[order],
        latency_s=star_latency(latency[order]),
    )
    np.testing.assert_allclose(second, first[order])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"operations_per_s": [0] * 4}, "of all 4 workers are 0; measure", id="idle"),
        pytest.param({"memory_bytes": [1, 1, 1, -2]}, "memory use .* not -2", id="negative"),
        pytest.param({"latency_s": np.full((4, 4), np.nan)}, "latency .* not nan", id="nan"),
        pytest.param({"memory_bytes": [1, 1]}, "got 4, 2 and a matrix of shape", id="too few"),
        pytest.param({"latency_s": np.ones((3, 3))}, r"shape \(3, 3\)", id="wrong matrix"),
    ],
)
def test_the_message_says_what_is_wrong_when_a_measurement_is(change, message):
    with pytest.raises(UsageError, match=message):
        kqv(64, **{**EVEN, **change})
