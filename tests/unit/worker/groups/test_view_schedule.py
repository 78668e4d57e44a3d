# SPDX-License-Identifier: Apache-2.0
"""Which view holds for which step, where batches are cut ahead and views come fast."""

from __future__ import annotations

import pytest

from gangline.spec.view import View
from gangline.worker.gradients.agreement import WIDTH, Agreed, BatchSection, Statement, ViewSection
from gangline.worker.groups.views import ViewSchedule

VIEWS = [View(number=number, members=(0,), shares=(4,)) for number in range(40)]


class Line:
    """A client that holds all views up to `newest_view`."""

    has_moved = False
    newest_view = len(VIEWS) - 1

    def view(self, number: int) -> View:
        return VIEWS[number]


def agree(schedule: ViewSchedule, *, view: int, step: int) -> None:
    """All members hold `view` when they have trained `step`."""
    said = Statement.of([0] * WIDTH)._replace(
        batch=BatchSection(view=0, epoch=0, step=step, micro=0),
        views=ViewSection(newest=view, last_cut=schedule.last_cut),
    )
    schedule.agree(Agreed(said, said, units=(), sizes=()))


@pytest.mark.parametrize("ahead", [1, 2, 6])
def test_a_view_holds_for_every_step_that_was_cut_by_it_however_many_follow(ahead: int) -> None:
    schedule = ViewSchedule(VIEWS[0], Line())  # type: ignore[arg-type]
    cut_by = {step: schedule.cut(step) for step in range(ahead)}
    for step in range(30):
        cut_by[step + ahead] = schedule.cut(step + ahead)
        assert schedule.at(step) is cut_by[step]
        agree(schedule, view=step + 1, step=step)
        assert schedule.at(step) is cut_by[step], "the step is still being trained"
    assert len({view.number for view in cut_by.values()}) > 20


def test_views_that_hold_no_more_are_forgotten() -> None:
    schedule = ViewSchedule(VIEWS[0], Line())  # type: ignore[arg-type]
    for step in range(30):
        schedule.cut(step)
        agree(schedule, view=step + 1, step=step)
    assert len(schedule._adopted) == 2
