# SPDX-License-Identifier: Apache-2.0
"""The estimate of a + b·n: robust, quick where it matters, and honest about what it knows."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.control.shares import speeds as module
from gangline.control.shares.speeds import (
    FIRST_FIXED_FRACTION,
    FIRST_STEPS,
    joined,
    observe,
    unknown_speeds,
)

FIXED, PER_SAMPLE = np.array([0.02, 0.1]), np.array([0.001, 0.005])


def time_of(samples, factor=1.0):
    return (FIXED + PER_SAMPLE * samples) * factor


def relative_error(speeds, samples):
    return speeds.standard_error_s(samples) / speeds.predicted_s(samples)


def fed(speeds, *, samples, steps, noise=0.0, factor=1.0, rng=None):
    """The speeds after some steps, and the factors of all changes that were found."""
    changes = []
    n = np.broadcast_to(np.asarray(samples), (2,))
    for _ in range(steps):
        spread = 1.0 if rng is None else np.exp(noise * rng.standard_normal(2))
        speeds, factors = observe(speeds, n, time_of(n, factor) * spread)
        changes += factors[factors != 1].tolist()
    return speeds, changes


def test_first_steps_are_not_observed():
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=FIRST_STEPS, factor=20.0)
    assert speeds.steps.tolist() == [FIRST_STEPS] * 2
    assert speeds.observed.tolist() == [0, 0]
    speeds, _ = fed(speeds, samples=64, steps=1)
    np.testing.assert_allclose(speeds.predicted_s(np.array([64, 64])), time_of(64))


def test_the_fixed_part_is_a_guess_when_n_never_varied():
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=30)
    np.testing.assert_allclose(speeds.fixed_s / time_of(64), FIRST_FIXED_FRACTION, rtol=1e-6)
    known, guessed = (relative_error(speeds, n) for n in (64, 8))
    assert (known < 0.03).all()
    assert (guessed > 0.2).all()


def test_fixed_and_variable_parts_are_told_apart_when_a_cut_moved_n():
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=6)
    speeds, changes = fed(speeds, samples=[110, 18], steps=12)
    np.testing.assert_allclose(speeds.fixed_s, FIXED, rtol=0.15)
    np.testing.assert_allclose(speeds.per_sample_s, PER_SAMPLE, rtol=0.05)
    assert changes == []


def test_the_ratio_is_kept_when_n_stays_for_long_after_it_was_learnt():
    rng = np.random.default_rng(1)
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=10, noise=0.02, rng=rng)
    speeds, _ = fed(speeds, samples=[110, 18], steps=1000, noise=0.02, rng=rng)
    np.testing.assert_allclose(speeds.fixed_s / speeds.per_sample_s, FIXED / PER_SAMPLE, rtol=0.3)


def test_the_first_step_at_a_new_n_is_not_observed():
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=10)
    after, changes = fed(speeds, samples=32, steps=1, factor=9.0)
    np.testing.assert_array_equal(after.per_sample_s, speeds.per_sample_s)
    np.testing.assert_array_equal(after.observed, speeds.observed)
    assert changes == []


def test_steps_are_observed_again_at_once_when_a_ragged_batch_is_over():
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=10)
    ragged, _ = fed(speeds, samples=7, steps=1)
    after, _ = fed(ragged, samples=64, steps=1)
    assert (after.observed == speeds.observed + 1).all()


def test_a_single_pause_moves_nothing():
    rng = np.random.default_rng(2)
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=40, noise=0.05, rng=rng)
    after, changes = fed(speeds, samples=64, steps=1, factor=30.0)
    np.testing.assert_array_equal(after.fixed_s, speeds.fixed_s)
    np.testing.assert_array_equal(after.per_sample_s, speeds.per_sample_s)
    assert changes == []


def test_the_estimate_recovers_when_the_very_first_observation_was_a_pause():
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=2)
    speeds, _ = fed(speeds, samples=64, steps=1, factor=50.0)
    speeds, changes = fed(speeds, samples=64, steps=6)
    np.testing.assert_allclose(speeds.predicted_s(np.array([64, 64])), time_of(64), rtol=0.05)
    assert len(changes) == 2


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_change_is_found_after_three_steps_and_scales_both_parts(factor):
    rng = np.random.default_rng(3)
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=50, noise=0.05, rng=rng)
    ratio = speeds.fixed_s / speeds.per_sample_s
    n = np.array([64, 64])
    slow = time_of(n) * [factor, 1.0]
    for _ in range(2):
        speeds, factors = observe(speeds, n, slow)
        assert (factors == 1).all()
    speeds, factors = observe(speeds, n, slow)
    assert factors[0] == pytest.approx(factor, rel=0.1)
    assert factors[1] == 1
    assert speeds.observed[0] == 3
    np.testing.assert_allclose(speeds.predicted_s(n), slow, rtol=0.1)
    np.testing.assert_allclose(speeds.fixed_s / speeds.per_sample_s, ratio)


def test_slow_drift_is_followed():
    rng = np.random.default_rng(4)
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=50, noise=0.05, rng=rng)
    for step in range(300):
        drifted = 1.001**step
        speeds, _ = fed(speeds, samples=64, steps=1, noise=0.05, factor=drifted, rng=rng)
    n = np.array([64, 64])
    np.testing.assert_allclose(speeds.predicted_s(n), time_of(n, drifted), rtol=0.08)


@pytest.mark.parametrize("noise", [0.02, 0.13])
def test_the_noise_and_the_standard_error_are_measured(noise):
    rng = np.random.default_rng(5)
    errors = []
    for _ in range(12):
        speeds, _ = fed(unknown_speeds(2), samples=64, steps=120, noise=noise, rng=rng)
        n = np.array([64, 64])
        errors += (np.log(speeds.predicted_s(n) / time_of(n)) / relative_error(speeds, n)).tolist()
        np.testing.assert_allclose(speeds.noise, noise, rtol=0.5)
    assert 0.5 < np.std(errors) < 1.5


def test_false_changes_are_rare_under_plain_noise():
    rng = np.random.default_rng(6)
    _, changes = fed(unknown_speeds(2), samples=64, steps=2000, noise=0.13, rng=rng)
    assert len(changes) <= 1


def test_workers_that_do_not_report_keep_what_is_known():
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=10)
    nothing = np.array([np.nan, 0.0])
    after, factors = observe(speeds, np.array([64, 64]), nothing)
    np.testing.assert_array_equal(after.steps, speeds.steps)
    np.testing.assert_array_equal(after.per_sample_s, speeds.per_sample_s)
    assert (factors == 1).all()
    ghost, _ = observe(speeds, np.array([0, 0]), time_of(1))
    np.testing.assert_array_equal(ghost.observed, speeds.observed)


def test_a_newcomer_is_taken_to_have_the_others_ratio():
    known, _ = fed(unknown_speeds(2), samples=64, steps=6)
    known, _ = fed(known, samples=[110, 18], steps=12)
    three = joined(known, unknown_speeds(1))
    assert len(three.surprises) == module.WINDOW
    for _ in range(3):
        three, _ = observe(three, np.array([110, 18, 40]), np.array([0.13, 0.19, 0.4]))
    ratio = three.fixed_s / three.per_sample_s
    assert ratio[2] == pytest.approx(np.median(ratio[:2]), rel=0.05)


def test_neither_part_gets_negative_when_times_contradict_the_model():
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=6)
    for samples, time in ((128, 0.5), (32, 0.01), (128, 0.01), (32, 0.5)):
        for _ in range(10):
            speeds, _ = observe(speeds, np.full(2, samples), np.full(2, time))
            assert (speeds.fixed_s >= 0).all()
            assert (speeds.per_sample_s > 0).all()


def test_nothing_is_changed_in_place():
    speeds, _ = fed(unknown_speeds(2), samples=64, steps=10)
    before = {name: np.copy(getattr(speeds, name)) for name in speeds.__struct_fields__}
    fed(speeds, samples=64, steps=10, factor=3.0)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(speeds, name), value)


def test_a_weight_next_to_nothing_gives_costs_that_are_numbers():
    fixed_s, per_sample_s = module.assumed_costs(unknown_speeds(2), np.array([1e-309, 1.0]))
    assert np.isfinite(fixed_s).all()
    assert per_sample_s == pytest.approx([1e9, 1.0])
