# SPDX-License-Identifier: Apache-2.0
"""Groups of two beside a tree: broken off from another thread, also where a transport cannot."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gangline.collectives import GroupKey, SoloGroup
from gangline.collectives.hierarchy.pairs import Pairs
from gangline.spec.errors import ExchangeAborted
from gangline.spec.exchange.address import WireAddress

WAIT_S = 10.0


class Stubborn:
    """A connector that cannot be interrupted, like that of gloo."""

    def __init__(self) -> None:
        self.is_connecting = threading.Event()
        self.may_go_on = threading.Event()

    def connect(self, key: GroupKey, **options: Any) -> SoloGroup:
        self.is_connecting.set()
        assert self.may_go_on.wait(WAIT_S)
        return SoloGroup()

    def cancel(self, key: GroupKey) -> None:
        pass


def test_who_breaks_off_does_not_wait_for_a_connection_that_cannot_be_interrupted() -> None:
    connector = Stubborn()
    key = GroupKey(run="run", view=0, attempt=0, level="")
    address = WireAddress(host="127.0.0.1", port=1)
    pairs = Pairs(key, rank=0, addresses=[address] * 2, connector=connector)
    raised: list[BaseException] = []

    def connect() -> None:
        with pytest.raises(ExchangeAborted) as caught:
            pairs.with_peer(1)
        raised.append(caught.value)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    assert connector.is_connecting.wait(WAIT_S)
    began_s = time.monotonic()
    breaking_off = threading.Thread(target=pairs.abort, daemon=True)
    breaking_off.start()
    breaking_off.join(WAIT_S / 2)
    try:
        assert not breaking_off.is_alive()
        assert time.monotonic() - began_s < WAIT_S / 2
    finally:
        connector.may_go_on.set()
        thread.join(WAIT_S)
    assert len(raised) == 1, "what comes too late is not used"
    pairs.close()
