# SPDX-License-Identifier: Apache-2.0
"""The virtual clock."""

from __future__ import annotations

import pytest

from gangline.simulation.clock import VirtualClock


def test_actions_run_by_time_then_priority_then_order():
    clock, order = VirtualClock(), []
    for at, priority, name in (
        (2.0, 0, "late"),
        (1.0, 1, "second"),
        (1.0, 0, "first"),
        (1.0, 1, "third"),
    ):
        clock.schedule(at, lambda name=name: order.append((clock.now, name)), priority=priority)
    clock.run()
    assert order == [(1.0, "first"), (1.0, "second"), (1.0, "third"), (2.0, "late")]


def test_an_action_can_schedule_another():
    clock, seen = VirtualClock(), []

    def again():
        seen.append(clock.now)
        if len(seen) < 3:
            clock.schedule(clock.now + 0.5, again)

    clock.schedule(1.0, again)
    clock.run()
    assert seen == [1.0, 1.5, 2.0]


def test_the_past_cannot_be_scheduled():
    clock = VirtualClock()
    clock.schedule(5.0, lambda: clock.schedule(4.0, lambda: None))
    with pytest.raises(ValueError, match=r"cannot schedule at 4.0: it is 5.0 already"):
        clock.run()


def test_nothing_happens_after_the_stop():
    clock, seen = VirtualClock(), []
    clock.schedule(1.0, clock.stop)
    clock.schedule(2.0, lambda: seen.append("late"))
    clock.run()
    assert (seen, clock.now) == ([], 1.0)
