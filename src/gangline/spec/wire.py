# SPDX-License-Identifier: Apache-2.0
"""How the wire transport is to work: what a user may choose. All workers of a job choose alike."""

from __future__ import annotations

import re

import msgspec

from gangline.spec.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9:][A-Za-z0-9:._%-]{0,252}")


class WireSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The choices of one run for its own transport."""

    ports: tuple[int, int] | None = None
    """The first and the last port that workers may listen on; None takes any free one."""
    connections: int = 1
    """TCP connections per link: more than one where one does not fill it."""
    checksum: bool = False
    """Check every segment that travels by TCP with a CRC-32."""
    address: str | None = None
    """The name or address at which others reach this worker; None: where it faces the coordinator."""
    calls_out: bool = False
    """Others may not get through to this worker (NAT, a firewall): it opens all its connections."""
    certificate: str | None = None
    """A PEM file: this worker's certificate. With it, the links between hosts are encrypted (TLS)."""
    key: str | None = None
    """A PEM file: the certificate's private key."""
    authority: str | None = None
    """A PEM file: who must have signed the peers' certificates."""

    def __post_init__(self) -> None:
        if self.ports is not None and not 0 < self.ports[0] <= self.ports[1] < 1 << 16:
            raise UsageError(
                f"a range of ports is two numbers from 1 to 65535, the first not above the second, "
                f"not {self.ports[0]}-{self.ports[1]}"
            )
        if self.address is not None and not _NAME.fullmatch(self.address):
            raise UsageError(
                f"wire.address must be a host name or an address without a port, not {self.address!r}"
            )
        if not 1 <= self.connections <= 64:
            raise UsageError(f"connections must be 1 to 64 per link, not {self.connections}")
        files = (self.certificate, self.key, self.authority)
        if any(files) and not all(files):
            raise UsageError(
                "TLS needs three files: the certificate, its key, and the authority that signed the "
                "peers' certificates"
            )

    @property
    def has_tls(self) -> bool:
        """Whether the links between hosts are encrypted."""
        return self.certificate is not None


def parse_ports(text: str) -> tuple[int, int]:
    """A range of ports such as `20000-20100`."""
    first, dash, last = text.partition("-")
    try:
        return int(first), int(last if dash else first)
    except ValueError as error:
        raise UsageError(f"a range of ports is written as 20000-20100, not {text!r}") from error
