# SPDX-License-Identifier: Apache-2.0
"""The buffers of connections: large where they may be asked for, else left to grow."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from gangline.collectives.wire.tcp import link

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = (socket.SO_SNDBUF, socket.SO_RCVBUF)


def buffers_with(limits: Path) -> tuple[list[int], list[int]]:
    """The sizes of a connection's buffers before and after they are set."""
    with socket.socket() as sock:
        before = [sock.getsockopt(socket.SOL_SOCKET, option) for option in OPTIONS]
        link.set_buffers(sock, limits)
        return before, [sock.getsockopt(socket.SOL_SOCKET, option) for option in OPTIONS]


@pytest.mark.parametrize("written", ["212992\n", "", None])
def test_buffers_are_left_to_grow_where_little_would_be_given(
    tmp_path: Path, written: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link.sys, "platform", "linux")
    for name in ("wmem_max", "rmem_max") if written is not None else ():
        (tmp_path / name).write_text(written or "")
    before, after = buffers_with(tmp_path)
    assert after == before


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_large_buffers_are_asked_for_where_they_are_given(
    tmp_path: Path, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link.sys, "platform", platform)
    for name in ("wmem_max", "rmem_max") if platform == "linux" else ():
        (tmp_path / name).write_text(str(4 << 20))
    before, after = buffers_with(tmp_path)
    assert all(large > small for large, small in zip(after, before, strict=True))
