# SPDX-License-Identifier: Apache-2.0
"""What a step was planned to take, and what the last steps took: whether a plan still holds.

A plan has drifted when the median of `WINDOW` steps is more than `FACTOR` times, or less than the
`FACTOR`th part of, what was expected, for `PATIENCE` windows in a row on the same side. One window that
is as expected starts the count anew, and so do other members. After a drift the measured time is what
is expected: so a model that is wrong by the same factor all the time is found out once, and not for
ever.
"""

from __future__ import annotations

from statistics import median

import msgspec

from gangline.spec.exchange.structure import Structure

WINDOW = 16
"""Steps that are judged together."""
PATIENCE = 3
"""Windows in a row that must be off."""
FACTOR = 1.5
"""How far off."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The expectation, and the steps since it was last compared. Never changed in place."""

    members: tuple[int, ...] = ()
    """Whom the expectation is for."""
    expected_s: float | None = None
    """What a step should take; None: there is no plan."""
    seen_of: tuple[int, ...] = ()
    """Whose the last steps are."""
    exchange_s: tuple[float, ...] = ()
    """The exchange of the last steps, at most `WINDOW`."""
    step_s: tuple[float, ...] = ()
    """The last steps, at most `WINDOW`."""
    num_off: int = 0
    """Windows in a row that were too slow; below 0: too fast."""
    left: tuple[Structure | None, ...] = ()
    """The structures that were left because they drifted: they are not taken again."""

    @property
    def is_full(self) -> bool:
        """Whether a whole window was seen."""
        return len(self.step_s) == WINDOW

    @property
    def median_step_s(self) -> float:
        """The usual step of this window."""
        return median(self.step_s)

    @property
    def median_exchange_s(self) -> float:
        """The usual exchange of this window."""
        return median(self.exchange_s)

    @property
    def ratio(self) -> float:
        """Measured over expected; 1 where nothing is expected."""
        if not self.expected_s or not self.step_s:
            return 1.0
        return self.median_step_s / self.expected_s

    @property
    def has_drifted(self) -> bool:
        """Whether the plan does not hold any more."""
        return abs(self.num_off) >= PATIENCE


def seen(pace: Pace, *, members: tuple[int, ...], exchange_s: float, step_s: float) -> Pace:
    """One more step; when the window is full it is judged. Other members begin another window."""
    if members != pace.seen_of:
        pace = msgspec.structs.replace(pace, seen_of=members, exchange_s=(), step_s=(), num_off=0)
    if pace.is_full:
        pace = msgspec.structs.replace(pace, exchange_s=(), step_s=())
    pace = msgspec.structs.replace(
        pace, exchange_s=(*pace.exchange_s, exchange_s), step_s=(*pace.step_s, step_s)
    )
    return msgspec.structs.replace(pace, num_off=_judged(pace)) if pace.is_full else pace


def _judged(pace: Pace) -> int:
    if pace.ratio > FACTOR:
        return max(pace.num_off, 0) + 1
    if pace.ratio < 1 / FACTOR:
        return min(pace.num_off, 0) - 1
    return 0
