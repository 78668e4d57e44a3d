# SPDX-License-Identifier: Apache-2.0
"""What was measured between two workers while they exchanged."""

from __future__ import annotations

import msgspec


class HopStats(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured on the way to one peer, while it worked."""

    peer: int
    latency_s: float
    """One way; 0 until something was measured."""
    bytes_per_s: float
    """0 until something large enough was moved."""
    bytes: int
    """Payload sent to and received from the peer."""
    corrupt: int
    """Segments whose checksum was wrong."""
    flow_bytes_per_s: float = 0.0
    """What the way carried lately while it was busy; 0 until something large enough was sent."""
