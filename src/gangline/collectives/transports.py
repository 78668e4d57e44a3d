# SPDX-License-Identifier: Apache-2.0
"""The transports by name: each opens a door at which this worker's peers can reach it."""

from __future__ import annotations

import ssl
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec
from torch._C._distributed_c10d import TCPStore

from gangline.collectives import GroupKey, SoloGroup, wire
from gangline.collectives.gloo import GlooGroup
from gangline.collectives.hierarchy import connect_tree
from gangline.collectives.mpi.door import MpiDoor
from gangline.collectives.nccl import NcclGroup, check_available
from gangline.collectives.wire import WireAddress, WireOptions
from gangline.spec.config import TRANSPORTS
from gangline.spec.errors import ExchangeAborted, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives import Group
    from gangline.spec.exchange.structure import Structure
    from gangline.spec.wire import WireSettings

DEFAULT_TRANSPORT = "wire"
_REGISTER_S = 0.001


class Door(Protocol):
    """Where this worker is reached, and how it makes groups with its peers."""

    @property
    def address(self) -> WireAddress: ...

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group: ...

    def connect_beside(
        self,
        key: GroupKey,
        *,
        rank: int,
        addresses: Sequence[WireAddress],
        idle_s: float | None = None,
    ) -> Group:
        """A group beside the members' own, made by another thread: `give_up` leaves it alone.

        With `idle_s`, a member may wait so long for the others; else as long as in any exchange.
        """
        ...

    def cancel(self, key: GroupKey) -> None:
        """Breaks off a `connect` for this group, from another thread."""
        ...

    def give_up(self, *, before: tuple[int, int]) -> None:
        """Breaks off a `connect` for a group below this view and attempt, from another thread."""
        ...

    def forget_groups(self) -> None:
        """Groups are numbered anew: what was given up says nothing of those to come."""
        ...

    def close(self) -> None: ...


class WireDoor:
    """Our own transport: shared memory within a host, a TCP ring between hosts."""

    def __init__(
        self, host: str, *, token: str, timeout_s: float, settings: WireSettings, uses_memory: bool
    ) -> None:
        self._listener = wire.listen(
            host,
            port_range=settings.ports,
            calls_out=settings.calls_out,
            announced=settings.address,
        )
        self._token = token.encode()
        self._timeout_s = timeout_s
        server_tls, client_tls = _tls_contexts(settings)
        self._options = WireOptions(
            timeout_s=timeout_s,
            shared_memory=uses_memory,
            connections=settings.connections,
            checksum=settings.checksum,
            server_tls=server_tls,
            client_tls=client_tls,
        )
        self.address = self._listener.address
        self._connecting: GroupKey | None = None
        self._least = (0, 0)

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group:
        self._connecting = key
        try:
            if (key.view, key.attempt) < self._least:
                raise ExchangeAborted(f"group {key} was given up before it was there")
            return self.connect_beside(key, rank=rank, addresses=addresses)
        finally:
            self._connecting = None

    def connect_beside(
        self,
        key: GroupKey,
        *,
        rank: int,
        addresses: Sequence[WireAddress],
        idle_s: float | None = None,
    ) -> Group:
        return wire.connect(
            key,
            rank=rank,
            addresses=list(addresses),
            listener=self._listener,
            token=self._token,
            timeout_s=self._timeout_s,
            options=self._options
            if idle_s is None
            else msgspec.structs.replace(self._options, timeout_s=idle_s),
        )

    def cancel(self, key: GroupKey) -> None:
        self._listener.cancel(key)

    def give_up(self, *, before: tuple[int, int]) -> None:
        self._least = max(self._least, before)
        key = self._connecting
        if key is None or (key.view, key.attempt) >= before:
            return
        while self._connecting is key and self._listener.find(key) is None:
            time.sleep(_REGISTER_S)  # it is just about to ask the listener
        self._listener.cancel(key)

    def forget_groups(self) -> None:
        self._least = (0, 0)

    def close(self) -> None:
        self._listener.close()


class StoreDoor:
    """Torch's transports: their members meet at a store that the first of them serves."""

    def __init__(self, host: str, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._own = self._open_store(host, 0, is_master=True)
        self._met_at = self._own
        self.address = WireAddress(host=host, port=self._own.port)

    def connect_beside(
        self,
        key: GroupKey,
        *,
        rank: int,
        addresses: Sequence[WireAddress],
        idle_s: float | None = None,
    ) -> Group:
        raise UnsupportedError(
            "groups that train at their own pace need the transport wire or wire-tcp"
        )

    def cancel(self, key: GroupKey) -> None:
        """Torch's stores cannot be interrupted: it ends at its time limit."""

    def give_up(self, *, before: tuple[int, int]) -> None:
        """Torch's stores cannot be interrupted; these transports lose a job with its first fault."""

    def forget_groups(self) -> None:
        """Nothing is remembered."""

    def _meet(self, rank: int, addresses: Sequence[WireAddress]) -> TCPStore:
        """The store of the first member, which may be this one."""
        host, port = addresses[0].host, addresses[0].port
        self._met_at = self._open_store(host, port, is_master=False) if rank else self._own
        return self._met_at

    def close(self) -> None:
        del self._own, self._met_at

    def _open_store(self, host: str, port: int, *, is_master: bool) -> TCPStore:
        return TCPStore(
            host,
            port,
            is_master=is_master,
            wait_for_workers=False,
            timeout=timedelta(seconds=self._timeout_s),
        )


class GlooDoor(StoreDoor):
    """Torch's collectives between CPUs."""

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group:
        store, size = self._meet(rank, addresses), len(addresses)
        return GlooGroup(key, store=store, rank=rank, size=size, timeout_s=self._timeout_s)


class NcclDoor(StoreDoor):
    """Torch's collectives between GPUs, one process per GPU."""

    def __init__(self, host: str, *, timeout_s: float) -> None:
        check_available()
        super().__init__(host, timeout_s=timeout_s)

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group:
        store, size = self._meet(rank, addresses), len(addresses)
        return NcclGroup(key, store=store, rank=rank, size=size, timeout_s=self._timeout_s)


def open_door(
    transport: str, *, host: str, token: str, timeout_s: float, settings: WireSettings
) -> Door:
    """The door of a transport, on the given interface."""
    check_transport(transport)
    if transport == "gloo":
        return GlooDoor(host, timeout_s=timeout_s)
    if transport == "nccl":
        return NcclDoor(host, timeout_s=timeout_s)
    door = WireDoor(
        host,
        token=token,
        timeout_s=timeout_s,
        settings=settings,
        uses_memory=transport != "wire-tcp",
    )
    return MpiDoor(door, timeout_s=timeout_s) if transport == "mpi" else door


def _tls_contexts(settings: WireSettings) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """TLS for the links that a worker accepts, and for those that it opens; both sides are checked."""
    certificate, key, authority = settings.certificate, settings.key, settings.authority
    if certificate is None or authority is None:
        return None, None
    try:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        server.verify_mode = ssl.CERT_REQUIRED
        client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
        client.check_hostname = False  # workers are known by the run's token, not by name
        for context in (server, client):
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"TLS cannot be set up with certificate {certificate}, key {key} and authority "
            f"{authority}: {error}"
        ) from error
    return server, client


def check_transport(transport: str) -> None:
    """Refuses a name that is no transport's, also where a job of one would not need it."""
    if transport not in TRANSPORTS:
        raise UsageError(
            f"transport {transport!r} is not known; choose one of: {', '.join(TRANSPORTS)}"
        )


def make_group(
    door: Door,
    key: GroupKey,
    *,
    worker: int,
    members: Sequence[int],
    addresses: Sequence[WireAddress],
    structure: Structure | None,
) -> Group:
    """The group of these members, given in rank order; a group of one needs nobody."""
    if len(members) == 1:
        return SoloGroup()
    ranks = {member: rank for rank, member in enumerate(members)}
    if structure is None:
        return door.connect(key, rank=ranks[worker], addresses=addresses)
    return connect_tree(
        key,
        structure=structure.relabelled(ranks.__getitem__),
        rank=ranks[worker],
        addresses=addresses,
        connector=door,
    )
