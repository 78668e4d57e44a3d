# SPDX-License-Identifier: Apache-2.0
"""With whom a worker can make connections, where some can only call out."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from gangline.spec.exchange.address import WireAddress
from gangline.worker.line.probing import find_callable

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def open_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def at(port: int, *, calls_out: bool = False) -> WireAddress:
    return WireAddress(host="127.0.0.1", port=port, calls_out=calls_out)


def test_who_calls_out_is_not_knocked_at(open_port: int, closed_port: int) -> None:
    others = {1: at(open_port), 2: at(closed_port), 3: at(closed_port, calls_out=True)}
    assert find_callable(at(1), others) == (1, 3)


def test_two_that_call_out_need_somebody_between_them(open_port: int, closed_port: int) -> None:
    own, hidden = at(1, calls_out=True), at(closed_port, calls_out=True)
    assert find_callable(own, {1: at(open_port), 2: hidden}) == (1, 2)
    assert find_callable(own, {1: at(closed_port), 2: hidden}) == ()
