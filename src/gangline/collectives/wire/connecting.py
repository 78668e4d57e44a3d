# SPDX-License-Identifier: Apache-2.0
"""Makes a group from the addresses of its members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.collectives.wire.device_memory.cuda import CudaMemory
from gangline.collectives.wire.device_memory.way import DeviceWay
from gangline.collectives.wire.group import Door, Exchange, WireGroup
from gangline.collectives.wire.joining.handshake import Membership
from gangline.collectives.wire.nouns import WireAddress, WireOptions
from gangline.collectives.wire.shared_memory.shared import SharedExchange
from gangline.collectives.wire.shared_memory.sharing import MAX_MEMBERS, share
from gangline.collectives.wire.tcp.links import Links
from gangline.collectives.wire.tcp.ring import RingExchange
from gangline.collectives.wire.waiting import Alarm, Deadline
from gangline.spec.errors import ExchangeAborted, ExchangeError, UsageError

if TYPE_CHECKING:
    from gangline.collectives.protocol import GroupKey
    from gangline.collectives.wire.joining.listener import Expectation, Listener

MIN_TOKEN_BYTES = 16


def connect(
    key: GroupKey,
    *,
    rank: int,
    addresses: list[WireAddress],
    listener: Listener,
    token: bytes,
    timeout_s: float = 30.0,
    options: WireOptions | None = None,
) -> WireGroup:
    """Joins the group `key` as member `rank`; returns when this member's connections are there.

    All members call it with the same addresses, in rank order, and hold the same token. From another
    thread, `listener.cancel(key)` breaks it off.
    """
    membership = Membership(key, rank, len(addresses), token, options or WireOptions())
    _check(membership)
    alarm = Alarm()
    door = Door(key, listener=listener, alarm=alarm)
    deadline = Deadline(timeout_s)
    try:
        expectation = listener.expect(membership, alarm)
    except BaseException:
        alarm.close()
        raise
    try:
        exchange = _make(
            membership, expectation=expectation, addresses=addresses, alarm=alarm, deadline=deadline
        )
        way = _device_way(membership, exchange)
        door.guard(exchange, way)
    except BaseException as error:
        door.close()
        if isinstance(error, ExchangeError) and not isinstance(error, ExchangeAborted):
            raise ExchangeError(f"group {key}, member {rank}: {error}") from error
        raise
    return WireGroup(key, rank=rank, size=membership.size, exchange=exchange, door=door, way=way)


def _make(
    membership: Membership,
    *,
    expectation: Expectation,
    addresses: list[WireAddress],
    alarm: Alarm,
    deadline: Deadline,
) -> Exchange:
    hosts = {address.host_id for address in addresses}
    is_one_host = len(hosts) == 1 and "" not in hosts and len(addresses) <= MAX_MEMBERS
    if is_one_host and membership.options.shared_memory:
        return share(
            membership, expectation=expectation, addresses=addresses, alarm=alarm, deadline=deadline
        )
    links = Links(membership, expectation=expectation, addresses=addresses, alarm=alarm)
    try:
        return RingExchange(links, deadline=deadline)
    except BaseException:
        links.close()
        raise


def _device_way(membership: Membership, exchange: Exchange) -> DeviceWay | None:
    """Where memory is shared, that of a GPU may be, too."""
    if not isinstance(exchange, SharedExchange):
        return None
    return DeviceWay(exchange, CudaMemory(), rank=membership.rank, size=membership.size)


def _check(membership: Membership) -> None:
    rank, size = membership.rank, membership.size
    if size < 2:
        raise UsageError("a wire group has at least two members; alone, use a SoloGroup")
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank}: a group of {size} has the ranks 0 to {size - 1}")
    if len(membership.token) < MIN_TOKEN_BYTES:
        raise UsageError(
            f"the run's token has {len(membership.token)} bytes; at least {MIN_TOKEN_BYTES} are "
            "needed (secrets.token_bytes(32))"
        )
