# SPDX-License-Identifier: Apache-2.0
"""Waiting for parameters within a forward pass is no part of computing."""

from __future__ import annotations

from gangline.worker.telling.stepclock import StepClock


def test_a_wait_is_taken_out_of_the_present_lap_and_of_no_other() -> None:
    now = [0.0]
    clock = StepClock(lambda: now[0])
    now[0] = 10.0
    clock.waited(3.0, 2.0)
    clock.computed()
    assert (clock.times.compute_s, clock.times.served_s, clock.times.turn_s) == (7.0, 3.0, 2.0)
    now[0] = 11.0
    clock.waited(5.0, 4.0)  # most of it was in a lap before
    clock.computed()
    assert (clock.times.compute_s, clock.times.served_s, clock.times.turn_s) == (7.0, 4.0, 3.0)
