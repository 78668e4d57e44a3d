# SPDX-License-Identifier: Apache-2.0
"""A member that goes while the group's shared memory is handed over."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gangline.collectives.wire.shared_memory import sharing
from gangline.collectives.wire.shared_memory.mapping import Layout
from gangline.spec.errors import ExchangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW: Any = SimpleNamespace(poll=lambda *_, **__: True)
"""Stands for the alarm, and for the deadline: nothing is waited for."""


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_member_0_goes_when_it_has_handed_out_everything(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    giver, taker = ends
    reader, writer = os.pipe()
    count = 2 * 2 + 2
    socket.send_fds(giver, [sharing._SEGMENT.pack(4096)], [reader] * count)
    os.close(reader)
    giver.close()
    membership: Any = SimpleNamespace(size=2)
    with pytest.raises(ExchangeError, match="member 0 is gone"):
        sharing._take(taker, membership, alarm=NOW, deadline=NOW)
    with pytest.raises(BrokenPipeError):  # no descriptor is left open
        os.write(writer, b"x")
    os.close(writer)


def test_a_member_goes_before_it_is_handed_anything(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    giver, taker = ends
    taker.close()
    with pytest.raises(ExchangeError, match="a member is gone"):
        sharing._hand_out([giver], Layout.of(2, 4096), alarm=NOW, deadline=NOW)
