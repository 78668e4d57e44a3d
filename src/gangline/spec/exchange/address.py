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

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
