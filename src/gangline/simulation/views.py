# SPDX-License-Identifier: Apache-2.0
"""Which view holds from which step on: the one that all members know of, a few steps later."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.spec.view import View


class ViewSchedule:
    """What the members of a group know of views that do not hold yet."""

    def __init__(
        self, present: View, known: Iterable[View | None], *, lag_steps: int, last_done: int
    ) -> None:
        """`present` holds; `known` is the newest view that each member knows of."""
        self._lag_steps = lag_steps
        self._coming: list[tuple[int, View]] = []
        self._newest = present.number
        self._views: dict[int, View] = {}
        self._num_aware: Counter[int] = Counter()
        """How many members know of each view, and of none that is newer."""
        for view in known:
            self._count(view, 1)
        self._look(last_done)

    def hear(self, before: View | None, view: View, *, last_done: int) -> None:
        """A member that knew of one view knows of another; `last_done` is the last step done."""
        self._count(before, -1)
        self._count(view, 1)
        self._look(last_done)

    def _count(self, view: View | None, change: int) -> None:
        number = -1 if view is None else view.number
        self._num_aware[number] += change
        if not self._num_aware[number]:
            del self._num_aware[number]
        if view is not None:
            self._views[number] = view

    def _look(self, last_done: int) -> None:
        """A view that all members know of holds a few steps later."""
        known = min(self._num_aware, default=-1)
        if known > self._newest:
            self._newest = known
            self._coming.append((last_done + self._lag_steps, self._views[known]))
            self._views = {one: view for one, view in self._views.items() if one >= known}

    def take(self, step: int) -> View | None:
        """The view that holds from this step on, if there is a new one."""
        if not self._coming:
            return None
        due = [view for at, view in self._coming if at <= step]
        self._coming = [(at, view) for at, view in self._coming if at > step]
        return due[-1] if due else None
