# SPDX-License-Identifier: Apache-2.0
"""Which view holds from which step on: the one that all members know of, a few steps later."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.spec.view import View


class ViewSchedule:
    """The views that were published and do not hold yet."""

    def __init__(self, *, lag_steps: int) -> None:
        self._lag_steps = lag_steps
        self._coming: list[tuple[int, View]] = []
        self._unknown: tuple[View, set[int]] | None = None

    def publish(self, view: View, *, last_done: int, unaware: set[int]) -> None:
        """A view is known to all members but these; `last_done` is the last step that they did."""
        if unaware:
            self._unknown = (view, unaware)
        else:
            self._coming.append((last_done + self._lag_steps, view))

    def learn(self, worker: int, *, last_done: int) -> None:
        """A worker knows of the newest view now."""
        if self._unknown is None:
            return
        view, unaware = self._unknown
        unaware.discard(worker)
        if not unaware:
            self._unknown = None
            self._coming.append((last_done + self._lag_steps, view))

    def clear(self) -> None:
        """There is another group: what was to hold for the old one never will."""
        self._coming, self._unknown = [], None

    def take(self, step: int) -> View | None:
        """The view that holds from this step on, if there is a new one."""
        due = [view for at, view in self._coming if at <= step]
        self._coming = [(at, view) for at, view in self._coming if at > step]
        return due[-1] if due else None
