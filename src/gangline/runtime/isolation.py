# SPDX-License-Identifier: Apache-2.0
"""Notices that this worker's machine is cut off: it reaches neither the coordinator nor the members.

The coordinator may be away while everybody trains, and an exchange may take long while the
coordinator is there. Where both last, the others go on without this worker, and nobody can tell it so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ALONE_S = 60.0
"""A worker that has reached neither the coordinator nor the members of its group for so long ends; or
for half as long as an exchange may wait (`init(timeout_s=…)`), where that is shorter."""


class Isolation:
    """Whether the coordinator has been away, and this worker in one exchange, for too long."""

    def __init__(self, waiting_s: Callable[[], float], limit_s: float) -> None:
        self.limit_s = limit_s
        self._waiting_s = waiting_s

    def is_lasting(self, *, away_s: float) -> bool:
        """Whether this worker is cut off for too long; the coordinator was heard of so long ago."""
        return min(away_s, self._waiting_s()) > self.limit_s

    def explain(self) -> str:
        """What the user is told."""
        return (
            f"this worker has reached neither the coordinator nor the other workers for "
            f"{self.limit_s:.0f} s: its machine seems to be cut off, or they have ended. Its "
            "parameters are not those that the others have trained meanwhile: take theirs, or those "
            "of the last checkpoint; join again when the network is well"
        )
