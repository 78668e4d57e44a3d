# SPDX-License-Identifier: Apache-2.0
"""Schemes that learn how fast workers are."""

from __future__ import annotations

import pytest

from gangline.scheduling import Speeds, Timing, TimingEstimate, parse_scheme


def test_weights_are_in_proportion_to_speeds_and_sum_to_their_number():
    speeds = Speeds()
    speeds.report(0, 10, 1.0)
    speeds.report(1, 10, 4.0)
    assert (speeds.weight(0), speeds.weight(1)) == pytest.approx((1.6, 0.4))
    assert speeds.weight(2, default=0.7) == 0.7


def test_later_reports_count_more():
    speeds = Speeds()
    speeds.report(0, 10, 1.0)
    speeds.report(0, 10, 2.0)
    assert speeds.rate(0) == pytest.approx(30 / 5), "(1·10 + 2·10) items in (1·1 + 2·2) seconds"


def test_a_worker_that_took_no_time_is_not_infinitely_fast():
    speeds = Speeds()
    speeds.report(0, 10, 0.0)
    speeds.report(1, 10, 1.0)
    assert speeds.weight(0) + speeds.weight(1) == pytest.approx(2)
    speeds.report(1, 0, 1.0)
    assert speeds.rate(1) == 10, "a report of no items says nothing"


def test_a_worker_that_is_gone_is_forgotten():
    speeds = Speeds()
    speeds.report(0, 10, 1.0)
    speeds.report(1, 10, 4.0)
    speeds.forget(0)
    assert speeds.workers == {1}
    assert speeds.weight(1) == pytest.approx(1.0)


def test_awf_learns_from_one_loop_for_the_next():
    speeds, awf = Speeds(), parse_scheme("AWF")
    loop = awf.make(1000, 2, speeds=speeds)
    assert loop.next_size(0, 1000) == 250
    loop.finished(0, 250, 25.0)
    loop.finished(1, 250, 100.0)
    assert loop.next_size(0, 750) == 250, "not within the loop"
    after = awf.make(1000, 2, speeds=speeds)
    assert [after.next_size(0, 1000), after.next_size(1, 600)] == [400, 100]


@pytest.mark.parametrize("name", ["AWF-C", "AWF-E"])
def test_awf_by_chunk_follows_at_once(name):
    scheme = parse_scheme(name).make(1000, 2)
    assert scheme.next_size(0, 1000) == 250
    scheme.finished(0, 250, 25.0)
    scheme.finished(1, 250, 100.0)
    assert scheme.next_size(1, 400) == 40, "0.4 times ⌈400/4⌉"
    assert scheme.next_size(0, 400) == 160


def test_chunks_may_be_smaller_than_published():
    assert parse_scheme("AWF-C(x=8)").make(1000, 2).next_size(0, 1000) == 63
    assert parse_scheme("AWF-B(x=5)").make(1000, 2).next_size(0, 1000) == 100


@pytest.mark.parametrize("name", ["AWF-B", "AWF-D"])
def test_awf_by_batch_keeps_the_weights_and_the_size_of_a_batch(name):
    scheme = parse_scheme(name).make(1000, 2)
    assert scheme.next_size(0, 1000) == 250
    scheme.finished(0, 250, 25.0)
    scheme.finished(1, 250, 100.0)
    assert scheme.next_size(1, 750) == 250, "still the first batch"
    assert scheme.next_size(1, 400) == 40


@pytest.mark.parametrize(("name", "size"), [("AWF-C", 100), ("AWF-E", 66)])
def test_only_some_count_the_overhead_as_time(name, size):
    scheme = parse_scheme(name).make(1000, 2)
    scheme.finished(0, 100, 10.0, 10.0)
    scheme.finished(1, 100, 10.0, 0.0)
    assert scheme.next_size(0, 400) == pytest.approx(size, abs=1)


def test_given_weights_hold_until_a_worker_has_reported():
    scheme = parse_scheme("AWF-C").make(1000, 2, weights=[3, 1])
    assert scheme.next_size(0, 1000) == 375
    scheme.finished(0, 100, 10.0)
    scheme.finished(1, 100, 10.0)
    assert scheme.next_size(0, 1000) == 250


def test_adaptive_factoring_goes_by_means_and_variances():
    scheme = parse_scheme("AF").make(1000, 2)
    for seconds in (0.0, 1.0, 2.0):
        scheme.finished(0, 1, seconds)
    for seconds in (1.0, 2.0, 3.0):
        scheme.finished(1, 1, seconds)
    # D = 1/1 + 1/2, T = 2/3: (1.5 + 400/3 − √(2.25 + 400)) / 2μ
    assert scheme.next_size(0, 100) == 58
    assert scheme.next_size(1, 100) == 29


def test_adaptive_factoring_begins_small_and_trusts_three_chunks():
    scheme = parse_scheme("AF").make(1600, 4)
    for _ in range(3):
        assert scheme.next_size(0, 1600) == 25
        scheme.finished(0, 25, 2.5)
    assert scheme.next_size(0, 1600) == 400, "σ = 0: its part of all that remains"
    assert scheme.next_size(1, 1200) == 25


def test_adaptive_factoring_does_not_begin_above_a_hundred():
    assert parse_scheme("AF").make(10**6, 2).next_size(0, 10**6) == 100


def test_mean_deviation_and_overhead_are_estimated_from_chunks():
    estimate = TimingEstimate()
    assert estimate.timing is None
    estimate.add(1, 1.0, 0.25)
    assert estimate.timing == Timing(mean_s=1.0, sigma_s=0.0, overhead_s=0.25)
    estimate.add(1, 3.0, 0.75)
    estimate.add(0, 9.0)
    found = estimate.timing
    assert found is not None
    assert (found.mean_s, found.overhead_s) == (2.0, 0.5)
    assert found.sigma_s == pytest.approx(2**0.5)
    assert found.variation == pytest.approx(2**0.5 / 2)


def test_larger_chunks_say_as_much_about_the_deviation():
    """Four items of 1, 3, 1, 3 seconds, two by two, vary less than their sum does one by one."""
    estimate = TimingEstimate()
    estimate.add(4, 4.0)
    estimate.add(4, 12.0)
    assert estimate.timing is not None
    assert estimate.timing.sigma_s == pytest.approx(8**0.5), "4·1² + 4·1² over K − 1 = 1"
