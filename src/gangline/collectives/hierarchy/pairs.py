# SPDX-License-Identifier: Apache-2.0
"""Groups of two, for members of a tree that share none: nobody between them knows what they send."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gangline.spec.errors import ExchangeAborted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives.hierarchy.connecting import Connector
    from gangline.collectives.protocol import Group, GroupKey
    from gangline.spec.exchange.address import WireAddress

_CANCEL_AGAIN_S = 0.001
_CANCEL_FOR_S = 0.5
"""Not all transports can break off a connection that is being made: then it ends at its time limit."""


class Pairs:
    """The groups of two that this member has needed so far."""

    def __init__(
        self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress], connector: Connector
    ) -> None:
        self._key, self._rank = key, rank
        self._addresses, self._connector = addresses, connector
        self._made: dict[int, Group] = {}
        self._connecting: GroupKey | None = None
        self._is_aborted = False

    def with_peer(self, peer: int) -> tuple[Group, int]:
        """The group with this peer, and the peer's place in it."""
        low, high = sorted((self._rank, peer))
        place = int(peer == high)
        if peer in self._made:
            return self._made[peer], place
        key = self._key._replace(level=f"pair.{low}.{high}")
        self._connecting = key
        try:
            self._check_aborted()
            both = [self._addresses[low], self._addresses[high]]
            self._made[peer] = self._connector.connect(key, rank=1 - place, addresses=both)
        finally:
            self._connecting = None
        self._check_aborted()
        return self._made[peer], place

    def _check_aborted(self) -> None:
        if self._is_aborted:
            raise ExchangeAborted("the exchange was broken off by this process")

    def items(self) -> list[tuple[int, Group]]:
        """The peers, and the groups with them."""
        return list(self._made.items())

    def abort(self) -> None:
        """Breaks off what goes on, from any thread."""
        self._is_aborted = True
        until_s = time.monotonic() + _CANCEL_FOR_S
        # It may be about to begin.
        while (key := self._connecting) is not None and time.monotonic() < until_s:
            self._connector.cancel(key)
            time.sleep(_CANCEL_AGAIN_S)
        for group in list(self._made.values()):
            group.abort()

    def close(self) -> None:
        """Frees everything; may be called twice."""
        for group in list(self._made.values()):
            group.close()
