# SPDX-License-Identifier: Apache-2.0
"""Which steps are written down in full."""

from __future__ import annotations

from gangline.eventlog.detail import AFTER_CHANGE, EVERY, FIRST, Detail


def test_the_first_steps_some_after_a_change_and_one_in_a_hundred() -> None:
    detail = Detail()
    wanted = {step for step in range(1000) if detail.wants(step, view=0 if step < 450 else 1)}
    assert wanted == {
        *range(FIRST),
        *range(0, 1000, EVERY),
        *range(450, 450 + AFTER_CHANGE),
    }


def test_a_worker_that_comes_later_begins_with_detail() -> None:
    detail = Detail()
    wanted = [step for step in range(7050, 7260) if detail.wants(step, view=9)]
    assert wanted == [*range(7050, 7150), 7200]
