# SPDX-License-Identifier: Apache-2.0
"""The enclosure: what a worker's process is put into before it begins, to be like another machine."""

from __future__ import annotations

import msgspec


class Enclosure(msgspec.Struct, frozen=True, kw_only=True):
    """A network of its own, a quota of its own, or neither."""

    namespace: int | None = None
    """An open descriptor of the network namespace; None: this machine's own network."""
    coordinator: str | None = None
    """Where the coordinator is reached from there, `ws://HOST:PORT`; None: where it says it is."""
    interface: str | None = None
    """The network interface there; None: that of this machine."""
    control_group: str | None = None
    """The folder of the control group that holds the worker to its speed; None: it paces itself."""

    @property
    def environment(self) -> dict[str, str]:
        """What torch must be told: it would look for this machine's name, and find no address."""
        if self.interface is None:
            return {}
        return {"GLOO_SOCKET_IFNAME": self.interface, "TP_SOCKET_IFNAME": self.interface}


OPEN = Enclosure()
"""No enclosure at all."""
