# SPDX-License-Identifier: Apache-2.0
"""Detectors: who is slower than usual, and who is not."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gangline.control.detection import DETECTORS, RobustDetector, check_detector, detector_named
from gangline.control.detection.paper import THRESHOLD, WIDTH
from gangline.coordinator.detectors import load_detector
from gangline.spec.errors import UsageError


def feed(detector, rows):
    """The detector after these steps, and the verdicts of each."""
    verdicts = []
    for row in rows:
        detector, verdict = detector.observe(np.asarray(row, dtype=float))
        verdicts.append(verdict)
    return detector, verdicts


def noise(steps, *, count=4, sigma=0.13, seed=0):
    return np.exp(sigma * np.random.default_rng(seed).standard_normal((steps, count)))


@pytest.mark.parametrize("name", DETECTORS)
def test_a_worker_that_gets_five_times_slower_is_found_within_three_steps(name):
    known, _ = feed(detector_named(name).joined(4), noise(40, sigma=0.05))
    rows = noise(3, sigma=0.05, seed=1)
    rows[:, 2] *= 5
    _, verdicts = feed(known, rows)
    assert verdicts[-1].slow.tolist() == [False, False, True, False]
    assert verdicts[-1].factor[2] > 1.5


@pytest.mark.parametrize("name", DETECTORS)
def test_what_is_known_follows_the_workers_when_some_go_and_others_come(name):
    known, _ = feed(detector_named(name).joined(3), noise(40, count=3, sigma=0.02))
    changed = known.selected(np.array([2, 0])).joined(1)
    _, verdicts = feed(changed, [[5.0, 1.0, 100.0]] * 3)
    assert verdicts[-1].slow.tolist()[:2] == [name == "robust" or verdicts[0].slow[0], False]
    assert verdicts[0].slow.tolist() == [name != "robust", False, False]
    assert verdicts[0].factor[2] == 1.0, "nothing is known of the newcomer"


@pytest.mark.parametrize("name", DETECTORS)
def test_a_step_that_was_not_measured_says_nothing(name):
    known, _ = feed(detector_named(name).joined(2), noise(40, count=2, sigma=0.02))
    after, verdicts = feed(known, [[np.nan, 1.0]] * 5)
    assert not verdicts[-1].slow.any()
    _, verdicts = feed(after, [[5.0, 1.0]] * 3)
    assert verdicts[-1].slow.tolist() == [True, False]


@pytest.mark.parametrize("sigma", [0.05, 0.13])
def test_plain_noise_is_nothing_to_the_robust_detector(sigma):
    _, verdicts = feed(RobustDetector().joined(8), noise(3000, count=8, sigma=sigma))
    assert not any(verdict.slow.any() for verdict in verdicts)


def test_pauses_are_nothing_to_the_robust_detector():
    rows = noise(2000, count=4, sigma=0.05)
    rows[np.random.default_rng(2).random(rows.shape) < 0.01] *= 20
    _, verdicts = feed(RobustDetector().joined(4), rows)
    assert not any(verdict.slow.any() for verdict in verdicts)


def test_the_robust_verdict_stays_while_a_worker_is_slow_and_ends_when_it_recovers():
    known, _ = feed(RobustDetector().joined(1), noise(40, count=1, sigma=0.03))
    slow, verdicts = feed(known, 3 * noise(200, count=1, sigma=0.03, seed=1))
    assert all(verdict.slow[0] for verdict in verdicts[2:]), "what is slow does not become usual"
    _, verdicts = feed(slow, noise(5, count=1, sigma=0.03, seed=2))
    assert not verdicts[-1].slow[0]


def test_the_robust_verdict_does_not_flicker_between_its_two_limits():
    known, _ = feed(RobustDetector().joined(1), np.ones((40, 1)))
    slow, _ = feed(known, np.full((5, 1), 2.0))
    _, verdicts = feed(slow, np.full((20, 1), 1.35))
    assert all(verdict.slow[0] for verdict in verdicts)
    _, verdicts = feed(known, np.full((20, 1), 1.35))
    assert not any(verdict.slow[0] for verdict in verdicts)


def test_a_faster_worker_is_slow_to_the_published_rule_only():
    for name in DETECTORS:
        known, _ = feed(detector_named(name).joined(1), np.ones((WIDTH, 1)))
        _, verdicts = feed(known, [[1 - THRESHOLD - 0.1]] * 5)
        assert verdicts[0].slow[0] == (name != "robust")


def test_the_published_averages_follow_who_stays_slow():
    for name, steps in (("paper-average", 100), ("paper-window", WIDTH)):
        known, _ = feed(detector_named(name).joined(1), np.ones((40, 1)))
        _, verdicts = feed(known, np.full((steps, 1), 2.0))
        assert verdicts[0].slow[0]
        assert not verdicts[-1].slow[0]


def test_single_steps_of_plain_noise_are_abnormal_by_the_published_rule():
    for name in ("paper-average", "paper-window"):
        _, verdicts = feed(detector_named(name).joined(8), noise(3000, count=8))
        assert sum(verdict.slow.sum() for verdict in verdicts) > 3


# --- names ---------------------------------------------------------------------------------------


def test_a_detector_is_found_by_its_name():
    assert isinstance(load_detector("robust"), RobustDetector)


def test_the_nearest_name_is_offered_when_there_is_no_such_detector():
    with pytest.raises(UsageError, match=r"no detector 'robus'.*did you mean 'robust'\?"):
        load_detector("robus")
    with pytest.raises(UsageError, match=r"package\.module:Name"):
        load_detector("zzz")


def test_a_detector_of_the_users_own_is_imported(tmp_path, monkeypatch):
    (tmp_path / "own_rules.py").write_text(
        "from gangline.control.detection import RobustDetector\n"
        "class Mine(RobustDetector, frozen=True, kw_only=True, eq=False): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert type(load_detector("own_rules:Mine")).__name__ == "Mine"
    with pytest.raises(UsageError, match="own_rules has no Other"):
        load_detector("own_rules:Other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_package.rules:Mine", r"cannot import no_such_package\.rules"),
        (":Mine", r"write package\.module:Name"),
        ("json:JSONDecoder", "has no observe, joined, selected"),
        ("json:loads", "cannot be made without arguments"),
    ],
)
def test_what_is_no_detector_is_refused_with_the_reason(text, message):
    with pytest.raises(UsageError, match=message):
        load_detector(text)


def test_a_class_that_lacks_a_method_is_told_which():
    class Half:
        def observe(self, values):
            """Judges nothing."""

        def joined(self, count):
            """Knows nobody."""

    with pytest.raises(UsageError, match="the detector Half has no selected"):
        check_detector(Half, name="Half")
