# SPDX-License-Identifier: Apache-2.0
"""Where a worker is reached by its peers."""

from __future__ import annotations

import msgspec


class WireAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member's listener is reached."""

    host: str
    port: int
    host_id: str = ""
    """Members with the same id can share memory; empty where this member cannot."""

    calls_out: bool = False
    """Others may not get through to it: it opens the connections with those that it gets through to."""

    mpi_rank: int = -1
    """Which rank of MPI's world it is, where it exchanges by MPI; -1: it does not."""

    def is_called_by(self, other: WireAddress) -> bool:
        """Whether another member opens the connections with this one, whichever way they carry."""
        return not self.calls_out and other.calls_out

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
