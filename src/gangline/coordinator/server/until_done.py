# SPDX-License-Identifier: Apache-2.0
"""Ends a coordinator that no launcher started when its job is trained to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.protocol.lifeline import Depart, Dissolve, ProcessEnded, Standing

REST_S = 3.0
"""How long nobody may be there: who was put out at the end may still come back for the result."""


class UntilDone:
    """Hears how the job stands, as a launcher does, and gives no orders."""

    def __init__(self) -> None:
        self._done_since_s: float | None = None
        self.end: Callable[[], None] = lambda: None
        """Ends the server; given by whoever serves."""

    def beat(self, standing: Standing, now: float) -> None:
        """Ends the server when the job is over, and all logs have come."""
        if not standing.finished or standing.present or standing.num_sending:
            self._done_since_s = None
        elif self._done_since_s is None:
            self._done_since_s = now
        elif now - self._done_since_s >= REST_S:
            self.end()

    def take_orders(self) -> list[ProcessEnded | Dissolve | Depart]:
        """There are none."""
        return []
