# SPDX-License-Identifier: Apache-2.0
"""Members that others do not get through to: they open the connections, whichever way these carry."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
import torch

from gangline.collectives import wire
from gangline.collectives.transports import _tls_contexts
from gangline.collectives.wire.joining import relaying
from gangline.collectives.wire.tcp import links
from gangline.files.certificates import make_tls_files
from gangline.spec.errors import ExchangeError
from gangline.spec.wire import WireSettings
from wire_members import TCP, in_threads, join, listeners, total, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gangline.collectives.wire import WireOptions
    from gangline.spec.exchange.address import WireAddress


def unreachable(address: WireAddress) -> WireAddress:
    """The same member, at a port at which it is not: who calls it fails."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    return msgspec.structs.replace(address, port=port, calls_out=True)


@pytest.mark.parametrize(("size", "hidden"), [(2, {0}), (2, {1}), (3, {1}), (4, {0, 2})])
def test_a_ring_and_direct_links_are_made_around_them(size: int, hidden: set[int]) -> None:
    options = msgspec.structs.replace(TCP, connections=2)
    with listeners(size) as made:
        addresses = [
            unreachable(one.address) if rank in hidden else one.address
            for rank, one in enumerate(made)
        ]

        def body(rank: int) -> torch.Tensor:
            with contextlib.closing(
                join(rank, made, options=options, addresses=addresses)
            ) as group:
                tensor = values(100, rank)
                group.all_reduce(tensor)
                group.broadcast(tensor, root=size - 1)
                if rank == 0:
                    group.send(tensor, to=1)
                elif rank == 1:
                    group.receive(tensor, source=0)
                return tensor

        for tensor in in_threads(size, body):
            assert torch.equal(tensor, total(100, size))


def test_two_that_only_call_out_try_to_call_each_other() -> None:
    with listeners(2) as made:
        both = [msgspec.structs.replace(one.address, calls_out=True) for one in made]

        def body(rank: int) -> torch.Tensor:
            with contextlib.closing(join(rank, made, options=TCP, addresses=both)) as group:
                tensor = values(10, rank)
                group.all_reduce(tensor)
                return tensor

        assert all(torch.equal(tensor, total(10, 2)) for tensor in in_threads(2, body))


def test_one_that_cannot_be_called_and_does_not_call_is_missed() -> None:
    with listeners(2) as made:
        addresses = [unreachable(made[0].address), made[1].address]
        with pytest.raises(ExchangeError, match="member 0 to connect"):
            join(1, made, options=TCP, addresses=addresses, timeout_s=0.2)


def test_a_member_is_reached_by_a_name_that_stands_for_it() -> None:
    made = [wire.listen(announced="localhost"), wire.listen("127.0.0.1")]
    try:
        assert [one.address.host for one in made] == ["localhost", "127.0.0.1"]

        def body(rank: int) -> torch.Tensor:
            with contextlib.closing(join(rank, made, options=TCP)) as group:
                tensor = values(10, rank)
                group.all_reduce(tensor)
                return tensor

        assert all(torch.equal(tensor, total(10, 2)) for tensor in in_threads(2, body))
    finally:
        for one in made:
            one.close()


def test_a_router_stands_for_a_member_that_listens_at_its_own_address() -> None:
    with wire.listen("127.0.0.1", announced="192.0.2.7") as listener:
        assert listener.address.host == "192.0.2.7"
        socket.create_connection(("127.0.0.1", listener.address.port), 5).close()


def test_a_listener_says_that_its_member_calls_out() -> None:
    with wire.listen(calls_out=True) as listener:
        assert listener.address.calls_out
        called = msgspec.structs.replace(listener.address, calls_out=False)
        assert called.is_called_by(listener.address)
        assert not listener.address.is_called_by(called)
        assert not listener.address.is_called_by(listener.address)


@pytest.mark.parametrize(("size", "hidden"), [(3, {0, 1}), (4, {1, 2, 3})])
def test_two_that_cannot_call_each_other_are_passed_on(
    size: int, hidden: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "DIRECT_S", 0.2)
    options = msgspec.structs.replace(TCP, connections=2)
    with listeners(size) as made:
        addresses = [
            unreachable(one.address) if rank in hidden else one.address
            for rank, one in enumerate(made)
        ]

        def body(rank: int) -> torch.Tensor:
            group = join(rank, made, options=options, addresses=addresses)
            with contextlib.closing(group) as group:
                tensor = values(100_000, rank)
                group.all_reduce(tensor)
                return tensor

        for tensor in in_threads(size, body):
            assert torch.equal(tensor, total(100_000, size))
        unreached = [len(one.unreached) for one in made]
        assert sum(unreached) == len(hidden) - 1


def test_what_is_passed_on_is_encrypted_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "DIRECT_S", 0.2)
    passed: list[bytes] = []
    monkeypatch.setattr(relaying, "_pass_on", recorded(passed))
    options = with_tls(tmp_path)
    with listeners(3) as made:
        addresses = [unreachable(made[0].address), unreachable(made[1].address), made[2].address]

        def body(rank: int) -> torch.Tensor:
            group = join(rank, made, options=options, addresses=addresses)
            with contextlib.closing(group) as group:
                tensor = torch.full((1000,), 123456789.0, dtype=torch.float64)
                group.all_reduce(tensor)
                return tensor

        assert all(
            torch.equal(one, torch.full_like(one, 3 * 123456789.0)) for one in in_threads(3, body)
        )
    said = b"".join(passed)
    assert len(said) > 8000
    secret = torch.full((2,), 123456789.0, dtype=torch.float64).numpy().tobytes()
    assert secret not in said


def recorded(passed: list[bytes]) -> Callable[[socket.socket, socket.socket], None]:
    """Passes on, and keeps what is said: late, so that who passes on is done before the others are."""

    def pass_on(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                passed.append(block)
                time.sleep(0.02)
                sink.sendall(block)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    return pass_on


def with_tls(folder: Path) -> WireOptions:
    files = make_tls_files(folder, run="run", hosts=["127.0.0.1"])
    settings = files.applied_to(WireSettings())
    server, client = _tls_contexts(settings)
    return msgspec.structs.replace(TCP, server_tls=server, client_tls=client)
