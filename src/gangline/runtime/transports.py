# SPDX-License-Identifier: Apache-2.0
"""The transports by name: each opens a door at which this worker's peers can reach it."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from torch._C._distributed_c10d import TCPStore

from gangline.collectives import GroupKey, SoloGroup, wire
from gangline.collectives.gloo import GlooGroup
from gangline.collectives.wire import WireAddress, WireOptions
from gangline.spec.errors import UsageError
from gangline.spec.launch import TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives import Group

DEFAULT_TRANSPORT = "wire"


class Door(Protocol):
    """Where this worker is reached, and how it makes groups with its peers."""

    @property
    def address(self) -> WireAddress: ...

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group: ...

    def close(self) -> None: ...


class WireDoor:
    """Our own transport: shared memory within a host, a TCP ring between hosts."""

    def __init__(
        self, host: str, *, token: str, timeout_s: float, shared_memory: bool = True
    ) -> None:
        self._listener = wire.listen(host)
        self._token = token.encode()
        self._timeout_s = timeout_s
        self._options = WireOptions(timeout_s=timeout_s, shared_memory=shared_memory)
        self.address = self._listener.address

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group:
        return wire.connect(
            key,
            rank=rank,
            addresses=list(addresses),
            listener=self._listener,
            token=self._token,
            timeout_s=self._timeout_s,
            options=self._options,
        )

    def close(self) -> None:
        self._listener.close()


class GlooDoor:
    """Torch's transport. Its members meet at a store that the first of them serves."""

    def __init__(self, host: str, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._store = self._open_store(host, 0, is_master=True)
        self.address = WireAddress(host=host, port=self._store.port)

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group:
        first = addresses[0]
        if rank != 0:
            self._store = self._open_store(first.host, first.port, is_master=False)
        return GlooGroup(
            key, store=self._store, rank=rank, size=len(addresses), timeout_s=self._timeout_s
        )

    def close(self) -> None:
        del self._store

    def _open_store(self, host: str, port: int, *, is_master: bool) -> TCPStore:
        return TCPStore(
            host,
            port,
            is_master=is_master,
            wait_for_workers=False,
            timeout=timedelta(seconds=self._timeout_s),
        )


def open_door(transport: str, *, host: str, token: str, timeout_s: float) -> Door:
    """The door of a transport, on the given interface."""
    check_transport(transport)
    if transport == "gloo":
        return GlooDoor(host, timeout_s=timeout_s)
    return WireDoor(host, token=token, timeout_s=timeout_s, shared_memory=transport == "wire")


def check_transport(transport: str) -> None:
    """Refuses a name that is no transport's, also where a job of one would not need it."""
    if transport not in TRANSPORTS:
        raise UsageError(
            f"transport {transport!r} is not known; choose one of: {', '.join(TRANSPORTS)}"
        )


def make_group(door: Door, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group:
    """The group of these members; a group of one needs nobody."""
    if len(addresses) == 1:
        return SoloGroup()
    return door.connect(key, rank=rank, addresses=addresses)


def interface_towards(host: str, port: int) -> str:
    """The address of this machine from which `host` is reached; nothing is sent."""
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
