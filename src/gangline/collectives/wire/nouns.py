# SPDX-License-Identifier: Apache-2.0
"""The nouns of the wire transport: where a member is reached, how a group works, what a hop does."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.exchange.address import WireAddress as WireAddress
from gangline.spec.exchange.hop import HopStats as HopStats

FALLBACK_CACHE_BYTES = 1 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class WireOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a group moves its bytes. All members of a group need the same options."""

    timeout_s: float = 60.0
    """How long one operation may wait for a peer."""
    shared_memory: bool = True
    """Share memory where all members are on one host; False always uses TCP."""
    connections: int = 1
    """TCP connections per link: more than one where one does not fill the link."""
    segment_bytes: int | None = None
    """The piece in which large tensors travel; None takes the size of the L2 cache, or up to
    16 MiB in shared memory where members share cores."""
    checksum: bool = False
    """Send a CRC-32 with every segment that travels by TCP."""
    server_tls: ssl.SSLContext | None = None
    """TLS for the TCP links that this member accepts; give both contexts or none."""
    client_tls: ssl.SSLContext | None = None
    """TLS for the TCP links that this member opens."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise UsageError(f"timeout_s must be above 0, not {self.timeout_s}")
        if not 1 <= self.connections <= 64:
            raise UsageError(f"connections must be 1 to 64 per link, not {self.connections}")
        if self.segment_bytes is not None and not 1024 <= self.segment_bytes <= 1 << 28:
            raise UsageError(
                f"segment_bytes must be 1024 (1 KiB) to {1 << 28} (256 MiB), "
                f"not {self.segment_bytes}"
            )
        if (self.server_tls is None) != (self.client_tls is None):
            raise UsageError("TLS needs both contexts: server_tls and client_tls, or neither")

    @property
    def tls(self) -> bool:
        """Whether the TCP links are encrypted."""
        return self.server_tls is not None


def host_id() -> str:
    """Names the memory that this process can share: this boot of this machine, this network.

    The network namespace belongs to it because members meet at a Unix socket, whose name is known
    in its namespace only. Empty where the system lacks what sharing needs.
    """
    if not (hasattr(os, "memfd_create") and hasattr(os, "eventfd")):
        return ""
    # The order of memory accesses that the barrier relies on is established for these only.
    if os.uname().machine not in {"x86_64", "aarch64"}:
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return ""
    return f"{boot}:{network}"


def cache_bytes(caches: Path = _CACHES) -> int:
    """The size of the second-level cache of the first core, or 1 MiB where it is not known."""
    for index in sorted(caches.glob("index*")):
        try:
            level = (index / "level").read_text().strip()
            size = (index / "size").read_text().strip()
            if level == "2":
                return int(size[:-1]) * _UNITS[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return FALLBACK_CACHE_BYTES
