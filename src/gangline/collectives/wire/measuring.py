# SPDX-License-Identifier: Apache-2.0
"""What is measured on a hop while it works: cheap enough to be always on."""

from __future__ import annotations

from gangline.collectives.wire.nouns import HopStats

_LARGE_BYTES = 64 << 10
_FADE = 0.95
_FLOW_FADE = 0.7
_MOST_FLOW = 1.25e9
"""What is faster than 10 Gbit/s is no link that could be in trouble, but this host's memory."""


class Meter:
    """The measurements of the way to one peer.

    An exchange lasts at least as long as the way is slow, and longer when a peer is late: so the
    speed is the best of the recent ones, a peak that fades.
    """

    def __init__(self) -> None:
        self.latency_s = 0.0
        self.corrupt = 0
        self._flow_bytes_per_s = 0.0
        self._flowed = (0, 0.0)
        self._bytes = 0
        self._bytes_per_s = 0.0

    def moved(self, num_bytes: int, duration_s: float) -> None:
        """So much was moved in so long."""
        self._bytes += num_bytes
        if num_bytes >= _LARGE_BYTES:
            self._bytes_per_s = max(num_bytes / duration_s, _FADE * self._bytes_per_s)

    def flowed(self, num_bytes: int, busy_s: float) -> None:
        """So much has arrived at the peer in all, and the connection was busy with it for so long.

        A busy processor slows it down for moments: here, too, the best counts, and fades.
        """
        more_bytes, more_s = num_bytes - self._flowed[0], busy_s - self._flowed[1]
        if more_bytes < _LARGE_BYTES or more_s <= 0:
            return
        self._flowed = (num_bytes, busy_s)
        faded = _FLOW_FADE * self._flow_bytes_per_s
        self._flow_bytes_per_s = max(min(more_bytes / more_s, _MOST_FLOW), faded)

    def answered(self, duration_s: float) -> None:
        """The peer answered within this time; the shortest is the latency."""
        if not self.latency_s or duration_s < self.latency_s:
            self.latency_s = duration_s

    def stats(self, peer: int) -> HopStats:
        """The measurements, as those of this peer."""
        return HopStats(
            peer=peer,
            latency_s=self.latency_s,
            bytes_per_s=self._bytes_per_s,
            bytes=self._bytes,
            corrupt=self.corrupt,
            flow_bytes_per_s=self._flow_bytes_per_s,
        )
