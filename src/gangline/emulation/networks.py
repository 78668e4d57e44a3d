# SPDX-License-Identifier: Apache-2.0
"""An emulated network: every node in a network namespace of its own, its links as slow as asked.

    with EmulatedNetwork(cluster, dial=lambda: dial_coordinator(run_dir)) as network:
        enclosures = network.enclosures         # one per node: what its processes are put into

A node has one interface, `eth0`, plugged into the switch of its island (`islands`). The bandwidth of
its own link is a token bucket of the kernel (`tc tbf`) at both ends of its cable. What lies between
islands is held back by our relay (`relay`): not every kernel can delay packets (`netem`).

Nothing of this machine's own network is touched, and nothing has a name: all of it goes when the
process that made it has ended, in whatever way, and those that were put into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.emulation.gates import PORT, Gate
from gangline.emulation.islands import PREFIX_BITS, address_of, mac_of, plan_network
from gangline.emulation.namespaces import inside, make_namespace, run_batch
from gangline.emulation.relay import Pipe, Relay, Switchboard
from gangline.spec.enclosure import Enclosure
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from gangline.spec.cluster import Cluster

INTERFACE = "eth0"
_MTU_BYTES = 9000
"""Large frames cost the relay less, and are still small beside a gradient."""
_QUEUE_BYTES = 8 << 20
"""What may wait for a node's link: more than a node sends at once, so that nothing is lost."""
_BURST_S = 0.001
"""How long a link that was idle may send faster; never less than one frame."""
_TUN_DEVICE = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TAP_WITHOUT_INFO = 0x1002
_SETTINGS = {
    # Of an idle connection the kernel forgets how much the link holds, and begins again from little.
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}


class EmulatedNetwork:
    """The network of one job; as a context manager it is there as long as the job."""

    def __init__(
        self, cluster: Cluster, *, dial: Callable[[], socket.socket] | None = None
    ) -> None:
        """`dial` makes a connection to the coordinator, for a node that wants one."""
        self._cluster = cluster
        self._plan = plan_network(cluster)
        self._dial = dial
        self._stack = contextlib.ExitStack()
        self._namespaces: list[int] = []
        self._pipes: dict[tuple[int, int], Pipe] = {}

    def __enter__(self) -> EmulatedNetwork:
        with self._stack:
            hub = self._make_namespace()
            self._namespaces = [self._make_namespace() for _ in self._cluster.nodes]
            self._make_switches(hub)
            for node in range(len(self._namespaces)):
                self._plug_in(node, hub=hub)
            if self._plan.needs_relay:
                self._start_relay(hub)
            if self._dial is not None:
                self._open_gates(self._dial)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def enclosures(self) -> tuple[Enclosure, ...]:
        """One per node."""
        return tuple(
            Enclosure(
                namespace=namespace,
                interface=INTERFACE,
                coordinator=f"ws://{address_of(node)}:{PORT}" if self._dial else None,
            )
            for node, namespace in enumerate(self._namespaces)
        )

    def throttle(self, part: float) -> None:
        """Leaves the links between places this part of their bandwidth, from now on."""
        for pipe in self._pipes.values():
            pipe.slowdown = 1 / part

    def _make_namespace(self) -> int:
        namespace = make_namespace()
        self._stack.callback(os.close, namespace)
        inside(namespace, _set_up)
        return namespace

    def _make_switches(self, hub: int) -> None:
        for island in range(len(self._plan.islands)):
            name = _switch(island)
            lines = [
                f"link add name {name} mtu {_MTU_BYTES} type bridge mcast_snooping 0",
                f"link set {name} up",
            ]
            run_batch("ip", lines, within=hub)

    def _plug_in(self, node: int, *, hub: int) -> None:
        """The cable of a node, and the speed of its both ends."""
        namespace, plug = self._namespaces[node], f"plug{node}"
        mac = mac_of(node).hex(":")
        cable = [
            f"link add name {plug} mtu {_MTU_BYTES} type veth peer name {INTERFACE} "
            f"mtu {_MTU_BYTES} address {mac} netns /proc/self/fd/{namespace}",
            f"link set {plug} master {_switch(self._plan.island_of()[node])} up",
        ]
        run_batch("ip", cable, within=hub, given=[namespace])
        own = [
            "link set lo up",
            f"addr add {address_of(node)}/{PREFIX_BITS} dev {INTERFACE}",
            f"link set {INTERFACE} up",
        ]
        run_batch("ip", own, within=namespace)
        bytes_per_s = self._cluster.nodes[node].bytes_per_s
        if bytes_per_s is not None:
            run_batch("tc", [_bucket(plug, bytes_per_s)], within=hub)
            run_batch("tc", [_bucket(INTERFACE, bytes_per_s)], within=namespace)

    def _start_relay(self, hub: int) -> None:
        names = [f"tap{island}" for island in range(len(self._plan.islands))]
        taps = [self._open_tap(name, hub) for name in names]
        for island, name in enumerate(names):
            lines = [
                f"link set {name} mtu {_MTU_BYTES} master {_switch(island)} txqueuelen 10000",
                f"link set {name} up",
            ]
            run_batch("ip", lines, within=hub)
        self._pipes = {
            (number, direction): Pipe(link.bytes_per_s)
            for number, link in enumerate(self._cluster.links)
            for direction in (0, 1)
        }
        self._stack.enter_context(Relay(Switchboard(self._plan, self._pipes), taps))

    def _open_tap(self, name: str, hub: int) -> int:
        try:
            tap = inside(hub, lambda: _make_tap(name))
        except OSError as error:
            raise UsageError(
                f"links between places are emulated by a relay, which needs {_TUN_DEVICE} "
                f"({error.strerror}); give nodes a `bytes_per_s` instead, for which it is not needed"
            ) from error
        self._stack.callback(os.close, tap)
        return tap

    def _open_gates(self, dial: Callable[[], socket.socket]) -> None:
        for node, namespace in enumerate(self._namespaces):
            gate = Gate(namespace, address_of(node), dial=dial)
            self._stack.callback(gate.close)


def by_worker(cluster: Cluster, enclosures: Sequence[Enclosure]) -> tuple[Enclosure, ...]:
    """The enclosure of each worker, from those of the nodes."""
    pairs = zip(cluster.nodes, enclosures, strict=True)
    return tuple(enclosure for node, enclosure in pairs for _ in range(node.workers))


def _set_up() -> None:
    for name, value in _SETTINGS.items():
        with contextlib.suppress(OSError):  # not in this kernel, or not ours to set
            Path("/proc/sys", name).write_text(value, encoding="ascii")


def _make_tap(name: str) -> int:
    tap = os.open(_TUN_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        request = struct.pack("16sH22x", name.encode(), _IFF_TAP_WITHOUT_INFO)
        fcntl.ioctl(tap, _TUNSETIFF, request)
    except BaseException:
        os.close(tap)
        raise
    return tap


def _switch(island: int) -> str:
    return f"switch{island}"


def _bucket(device: str, bytes_per_s: float) -> str:
    burst = max(_MTU_BYTES + 100, round(bytes_per_s * _BURST_S))
    rate = max(1, round(bytes_per_s * 8))
    return f"qdisc add dev {device} root tbf rate {rate}bit burst {burst} limit {_QUEUE_BYTES}"
