# SPDX-License-Identifier: Apache-2.0
"""What a round takes from the steps beside it, by comparing them with calm ones."""

from __future__ import annotations

import pytest

from gangline.worker.sync.teams.burden import Burden


def with_calm(steps: int) -> Burden:
    burden = Burden()
    for _ in range(steps):
        burden.add(0.1, is_calm=True)
    return burden


def test_it_is_what_the_steps_beside_a_round_take_longer() -> None:
    burden = with_calm(5)
    burden.begin()
    for step_s in (0.12, 0.15, 0.09):
        burden.add(step_s, is_calm=False)
    assert burden.seconds == pytest.approx(0.06)


def test_nothing_is_known_before_there_were_calm_steps() -> None:
    burden = with_calm(4)
    burden.begin()
    burden.add(5.0, is_calm=False)
    assert burden.seconds == 0.0


def test_a_round_gives_nothing_back() -> None:
    burden = with_calm(5)
    burden.begin()
    burden.add(0.01, is_calm=False)
    assert burden.seconds == 0.0


def test_every_round_is_counted_for_itself() -> None:
    burden = with_calm(5)
    burden.begin()
    burden.add(0.3, is_calm=False)
    burden.begin()
    burden.add(0.15, is_calm=False)
    assert burden.seconds == pytest.approx(0.05)


def test_a_single_odd_step_is_not_what_is_usual() -> None:
    burden = with_calm(6)
    burden.add(9.0, is_calm=True)
    burden.begin()
    burden.add(0.15, is_calm=False)
    assert burden.seconds == pytest.approx(0.05)
