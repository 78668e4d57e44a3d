# SPDX-License-Identifier: Apache-2.0
"""What was decided, why, and by which numbers."""

from __future__ import annotations

import msgspec

from gangline.scheduling.choice import Choice


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice with its reason; who runs the loop writes it to the events as a `Decision`."""

    choice: Choice
    reason: str
    numbers: dict[str, float | None] = {}
    loop: int = 0
    """Which loop it is for, from 0."""
    is_within: bool = False
    """Whether it holds from the middle of the loop on."""

    @property
    def what(self) -> str:
        """For `Decision.what`."""
        return "reschedule" if self.is_within else "schedule"
