# SPDX-License-Identifier: Apache-2.0
"""The enclosure: what a worker's process is put into before it begins, to be like another machine."""

from __future__ import annotations

import msgspec


class Enclosure(msgspec.Struct, frozen=True, kw_only=True):
    """A network, a quota and variables of its own, or none of them."""

    namespace: int | None = None
    """An open descriptor of the network namespace; None: this machine's own network."""
    coordinator: str | None = None
    """Where the coordinator is reached from there, `ws://HOST:PORT`; None: where it says it is."""
    interface: str | None = None
    """The network interface there; None: that of this machine."""
    control_group: str | None = None
    """The folder of the control group that holds the worker to its speed; None: it paces itself."""
    host: str | None = None
    """The host of the hosts file on which it runs; None: this machine."""
    variables: dict[str, str] = {}
    """Variables of its node."""

    @property
    def environment(self) -> dict[str, str]:
        """What torch must be told: it would look for this machine's name, and find no address."""
        if self.interface is None:
            return self.variables
        names = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
        return dict.fromkeys(names, self.interface) | self.variables


OPEN = Enclosure()
"""No enclosure at all."""
