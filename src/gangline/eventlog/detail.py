# SPDX-License-Identifier: Apache-2.0
"""Which steps are written down in full: enough to look closely, few enough for a run of months."""

from __future__ import annotations

FIRST = 100
"""The first steps of a worker."""
AFTER_CHANGE = 50
"""Steps after a new view: somebody decided something, came or was lost."""
EVERY = 100
"""Of the others one in so many: the same ones on all workers, so that they can be compared."""


class Detail:
    """Asked step by step, in their order."""

    def __init__(self) -> None:
        self._num_left = FIRST
        self._view: int | None = None

    def wants(self, step: int, view: int) -> bool:
        """Whether this step, in this view, is written down in full."""
        if self._view not in (None, view):
            self._num_left = max(self._num_left, AFTER_CHANGE)
        self._view = view
        is_wanted = self._num_left > 0 or step % EVERY == 0
        self._num_left -= self._num_left > 0
        return is_wanted
