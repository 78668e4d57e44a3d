# SPDX-License-Identifier: Apache-2.0
"""Notices that this worker's machine is cut off: it reaches neither the coordinator nor the members.

The coordinator may be away while everybody trains, and an exchange may take long while the
coordinator is there. Where both last, and no other member can be reached, the others go on without
this worker (or have ended), and nobody can tell it so.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gangline.worker.line.probing import find_reached

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gangline.spec.exchange.address import WireAddress

ALONE_S = 60.0
"""A worker that has reached neither the coordinator nor any other member for so long ends; or for half
as long as an exchange may wait (`init(timeout_s=…)`), where that is shorter."""


class Isolation:
    """How long this worker has waited for the others, and whether it reaches anybody."""

    def __init__(self, exchanging_s: Callable[[], float], limit_s: float) -> None:
        """`exchanging_s` says how long it has been in its present exchange."""
        self.limit_s = limit_s
        self._exchanging_s = exchanging_s
        self._idle_since_s: float | None = None

    def wait(self) -> None:
        """This worker waits to be told how to go on; perhaps it has done so for a while."""
        self._idle_since_s = self._idle_since_s or time.monotonic()

    def go_on(self) -> None:
        """It was told."""
        self._idle_since_s = None

    def is_over(self, *, away_s: float, peers: Mapping[int, WireAddress]) -> bool:
        """Whether this worker should end; the coordinator was heard of so long ago."""
        since_s = self._idle_since_s
        idle_s = 0.0 if since_s is None else time.monotonic() - since_s
        if min(away_s, max(idle_s, self._exchanging_s())) <= self.limit_s:
            return False
        return not find_reached(peers)

    def explain(self) -> str:
        """What the user is told."""
        return (
            f"this worker has reached neither the coordinator nor the other workers for "
            f"{self.limit_s:.0f} s: its machine seems to be cut off, or they have ended. Its "
            "parameters are not those that the others have trained meanwhile: take theirs, or those "
            "of the last checkpoint; join again when the network is well"
        )
