# SPDX-License-Identifier: Apache-2.0
"""Who wants in and who wants out, until it can be done.

Planned changes come one at a time: while the members of a new group still find each other, nobody can
tell which group a worker that is to enter or to leave would meet the others in. Who asks meanwhile
waits, and all that wait are served together.
"""

from __future__ import annotations

from typing import NamedTuple


class Change(NamedTuple):
    """The next planned change: either workers that join, or workers that leave."""

    joining: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    last: int | None = None
    """The only member that is left wants to leave: the job ends with it."""


class Changes:
    """The wishes that have not been granted, and whether the present group has begun to train."""

    def __init__(self) -> None:
        self._joining: list[int] = []
        self._leaving: set[int] = set()
        self._first_view = -1
        self.is_settled = False
        """Whether the present group has begun to train."""
        self.newcomers: frozenset[int] = frozenset()
        """Who is in the present group for the first time, and may not have found the others yet."""

    def want_in(self, worker: int) -> None:
        """A worker is ready to take part."""
        self._leaving.discard(worker)
        if worker not in self._joining:
            self._joining.append(worker)

    def want_out(self, worker: int) -> None:
        """A worker wants to go."""
        self._leaving.add(worker)
        self.forget(worker)

    def forget(self, worker: int) -> None:
        """A worker that waited is not there any more."""
        if worker in self._joining:
            self._joining.remove(worker)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Who wants in."""
        return tuple(self._joining)

    def begin_group(self, first_view: int, *, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        """A view with another group was published."""
        self._first_view = first_view
        self.is_settled = False
        self.newcomers = frozenset(new) - frozenset(old)
        self._joining = [worker for worker in self._joining if worker not in new]
        self._leaving &= set(new)

    def see_step(self, view: int) -> None:
        """A member finished a step that was cut by this view."""
        if view >= self._first_view:
            self.is_settled = True
            self.newcomers = frozenset()

    def next(self, members: tuple[int, ...]) -> Change | None:
        """What is to be done now, if anything."""
        if not self.is_settled:
            return None
        if not self._joining and not self._leaving:
            return None
        joining = tuple(worker for worker in self._joining if worker not in members)
        if joining:  # first, because somebody must be there whose state they copy
            return Change(joining=joining)
        leaving = tuple(worker for worker in members if worker in self._leaving)
        if leaving and len(members) == 1:
            return Change(last=members[0])
        if len(leaving) == len(members):
            leaving = leaving[1:]
        return Change(leaving=leaving) if leaving else None
