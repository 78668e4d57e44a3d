# SPDX-License-Identifier: Apache-2.0
"""The listener lets in members only, and no stranger can keep them out."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch

from forking import PROCESSES
from gangline.collectives import wire
from gangline.collectives.wire import Listener, WireOptions
from gangline.collectives.wire.joining import frames, listener
from gangline.collectives.wire.joining.frames import (
    INITIATOR,
    Challenge,
    Hello,
    Proof,
    Refusal,
    Shake,
)
from gangline.spec.errors import ExchangeAborted, ExchangeError, UsageError
from wire_members import (
    KEY,
    TCP,
    TIMEOUT_S,
    TOKEN,
    in_threads,
    join,
    listeners,
    nothing_left_behind,
    run_members,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def stranger(to: Listener) -> Iterator[socket.socket]:
    address = to.address
    with socket.create_connection((address.host, address.port), timeout=TIMEOUT_S) as sock:
        yield sock


def read_frame(sock: socket.socket) -> frames.Body:
    kind, length = frames.decode_prefix(sock.recv(frames.PREFIX_BYTES, socket.MSG_WAITALL))
    return frames.decode_body(kind, sock.recv(length, socket.MSG_WAITALL) if length else b"")


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def hello(**changes: object) -> Hello:
    fields = {
        "run": KEY.run, "view": KEY.view, "attempt": KEY.attempt, "level": KEY.level,
        "source": 1, "target": 0, "link": "ring 0",
        "options": "connections=1 checksum=False size=2", "tls": False, "nonce": b"n" * 32,
    }  # fmt: skip
    return Hello(**{**fields, **changes})


def exchange_once(made: list[Listener], options: WireOptions = TCP) -> None:
    def member(rank: int) -> float:
        with contextlib.closing(join(rank, made, options=options)) as group:
            tensor = torch.ones(10)
            group.all_reduce(tensor)
            return float(tensor[0])

    assert in_threads(len(made), member) == [float(len(made))] * len(made)


@contextlib.contextmanager
def waiting_member(made: list[Listener], options: WireOptions = TCP) -> Iterator[None]:
    """Member 0 waits for the others, who do not come."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(join, 0, made, options=options)
        try:
            yield
        finally:
            while not future.done():
                made[0].cancel(KEY)
            with pytest.raises(ExchangeAborted):
                future.result()


def test_junk_costs_only_the_connection_it_came_over() -> None:
    rng = random.Random(5)
    with listeners(2) as made:
        for _ in range(50):
            with stranger(made[0]) as sock:
                junk = rng.randbytes(rng.randrange(8, 200))
                if rng.random() < 0.5:
                    junk = b"GLhs\x01" + bytes([rng.randrange(8)]) + junk
                with contextlib.suppress(OSError):
                    sock.sendall(junk)
                    sock.shutdown(socket.SHUT_WR)
                assert is_closed(sock)
        exchange_once(made)


@pytest.mark.parametrize(
    "frame",
    [
        b"GLhs\x01\x01\xff\xff" + b"x" * 100,
        b"GLhs\x02\x01\x00\x00",
        frames.encode(Proof(mac=b"m" * 32)),
        frames.encode(Challenge(nonce=b"n" * 32, mac=b"m" * 32)),
    ],
    ids=["oversize", "version", "proof first", "challenge first"],
)
def test_a_frame_out_of_place_ends_the_connection(frame: bytes) -> None:
    with listeners(1) as made, stranger(made[0]) as sock:
        sock.sendall(frame)
        assert is_closed(sock)


def test_members_get_in_when_silent_strangers_hold_every_place() -> None:
    with listeners(2) as made, contextlib.ExitStack() as stack:
        for _ in range(listener.MAX_ARRIVALS + 20):
            sock = stack.enter_context(stranger(made[1]))
            sock.sendall(b"GL")
        exchange_once(made)


def test_a_slow_stranger_is_dropped_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.05)
    with listeners(1) as made, stranger(made[0]) as sock:
        sock.sendall(b"GLhs")
        assert is_closed(sock)


def test_what_nobody_asks_for_is_not_parked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "PARKED_S", 0.05)
    with listeners(1) as made, stranger(made[0]) as sock:
        sock.sendall(frames.encode(hello(run="another")))
        assert is_closed(sock)


def test_a_stranger_without_the_token_is_refused() -> None:
    with listeners(2) as made, waiting_member(made), stranger(made[0]) as sock:
        said = hello()
        sock.sendall(frames.encode(said))
        challenge = read_frame(sock)
        assert isinstance(challenge, Challenge)
        wrong = Shake(b"another token", said, challenge.nonce).proof(INITIATOR)
        sock.sendall(frames.encode(Proof(mac=wrong)))
        assert is_closed(sock)


def test_a_recorded_hand_shake_is_worth_nothing_when_it_is_played_again() -> None:
    with listeners(2) as made, waiting_member(made):
        said = hello()
        with stranger(made[0]) as sock:
            sock.sendall(frames.encode(said))
            challenge = read_frame(sock)
            assert isinstance(challenge, Challenge)
            mac = Shake(TOKEN, said, challenge.nonce).proof(INITIATOR)
        with stranger(made[0]) as sock:
            sock.sendall(frames.encode(said))
            assert read_frame(sock) != challenge
            sock.sendall(frames.encode(Proof(mac=mac)))
            assert is_closed(sock)


def prove(sock: socket.socket, said: Hello) -> None:
    """Shakes hands up to the welcome."""
    sock.sendall(frames.encode(said))
    challenge = read_frame(sock)
    assert isinstance(challenge, Challenge)
    mac = Shake(TOKEN, said, challenge.nonce).proof(INITIATOR)
    sock.sendall(frames.encode(Proof(mac=mac)))


def test_a_second_connection_for_the_same_place_is_closed_without_a_welcome() -> None:
    """Who was welcomed would take it for a connection of the group, and wait for an answer."""
    said = hello(options="connections=1 checksum=False size=3", source=1)
    with listeners(3) as made, waiting_member(made), stranger(made[0]) as first:
        prove(first, said)
        assert isinstance(read_frame(first), frames.Welcome)
        with stranger(made[0]) as second:
            prove(second, said)
            assert is_closed(second)
        first.settimeout(0.1)
        with pytest.raises(TimeoutError):
            is_closed(first)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": 1}, "this is member 0, not 1"),
        ({"source": 0}, "no other member 0 in a group of 2"),
        ({"source": 9}, "no other member 9 in a group of 2"),
        ({"options": "connections=4 checksum=True size=2"}, "options differ: connections=4"),
        ({"tls": True}, "TLS is off here, on there"),
    ],
)
def test_the_reason_is_told_when_a_connection_cannot_be_used(
    changes: dict[str, object], reason: str
) -> None:
    with listeners(2) as made, waiting_member(made), stranger(made[0]) as sock:
        sock.sendall(frames.encode(hello(**changes)))
        refusal = read_frame(sock)
        assert isinstance(refusal, Refusal)
        assert reason in refusal.reason


@pytest.mark.parametrize("shared", [True, False])
def test_it_is_noticed_when_tokens_differ(shared: bool) -> None:
    options = WireOptions(shared_memory=shared, timeout_s=TIMEOUT_S)
    with listeners(2) as made:

        def attempt(rank: int) -> str:
            token = TOKEN if rank == 0 else b"another token, as long as the first"
            with pytest.raises(
                ExchangeError, match=f"group run/1/0/flat, member {rank}:"
            ) as caught:
                join(rank, made, options=options, token=token, timeout_s=1.0)
            return str(caught.value)

        assert "does not hold the token of run 'run'" in " ".join(in_threads(2, attempt))


def test_an_early_connection_waits_until_its_group_is_asked_for() -> None:
    with listeners(2) as made, ThreadPoolExecutor(1) as pool:
        early = pool.submit(join, 0, made, options=TCP)
        while not made[1]._arrivals:
            assert not early.done()
        late = join(1, made, options=TCP)
        early.result().close()
        late.close()


def test_the_missing_member_is_named_when_nobody_answers() -> None:
    with listeners(2) as made:
        with pytest.raises(ExchangeError, match=r"waited 0\.1 s for member 1"):
            join(0, made, options=TCP, timeout_s=0.1)
        with pytest.raises(ExchangeError, match=r"waited 0\.1 s for member 1 to connect"):
            join(0, made, timeout_s=0.1)
        made[1].close()
        unreached = r"(no connection|cannot connect) to member 1 at 127\.0\.0\.1"
        with pytest.raises(ExchangeError, match=unreached):
            join(0, made, options=TCP, timeout_s=0.1)


def test_making_a_group_can_be_broken_off() -> None:
    with nothing_left_behind(), listeners(2) as made, waiting_member(made):
        made[0].cancel(KEY._replace(view=99))


def test_only_the_chosen_interface_and_port_are_used() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        taken = probe.getsockname()[1]
        with pytest.raises(ExchangeError, match=f"tried port {taken}"):
            wire.listen(port_range=(taken, taken))
        last = min(taken + 50, 65535)
        with wire.listen("127.0.0.1", port_range=(taken, last)) as made:
            assert taken < made.address.port <= last
            with socket.socket() as sock:
                refused = sock.connect_ex(("127.0.0.2", made.address.port))
            assert refused != 0


@pytest.mark.parametrize("ports", [(0, 5), (9, 8), (1, 70_000)])
def test_a_port_range_that_makes_no_sense_is_named(ports: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="port_range is"):
        wire.listen(port_range=ports)


def test_what_cannot_be_a_group_is_named() -> None:
    with listeners(2) as made:
        address = made[0].address
        with pytest.raises(UsageError, match="at least two members"):
            join(0, made, addresses=[address])
        with pytest.raises(UsageError, match="rank -1"):
            wire.connect(KEY, rank=-1, addresses=[address] * 2, listener=made[0], token=TOKEN)
        with pytest.raises(UsageError, match="at least 16 are needed"):
            join(0, made, token=b"short")
        with waiting_member(made):
            while made[0].find(KEY) is None:
                pass
            with pytest.raises(UsageError, match="in the group run/1/0/flat already"):
                join(0, made)
    with pytest.raises(ExchangeAborted, match="listener is closed"):
        join(0, made)


def test_nothing_is_left_when_listeners_are_closed() -> None:
    with nothing_left_behind(), listeners(3) as made:
        made[0].close()
        with stranger(made[1]) as sock:
            sock.sendall(b"GLhs")


def fork_and_leave() -> None:
    """A member forks a child that lives on, and leaves; the other must notice."""

    def body(group: wire.WireGroup) -> None:
        if group.rank == 0:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.read(reader, 1)
                finally:
                    os._exit(0 if sys.exc_info()[0] is None else 3)
            group.close()
            os.close(reader)
            forked.append((child, writer))
        else:
            with pytest.raises(ExchangeError, match="member 0 is gone"):
                group.all_reduce(torch.ones(5))

    forked: list[tuple[int, int]] = []
    for options in (WireOptions(timeout_s=TIMEOUT_S), TCP):
        run_members(2, body, options=options)
    for child, writer in forked:
        os.write(writer, b"x")
        os.close(writer)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_does_not_keep_the_connections() -> None:
    # In a process of its own: the threads that other tests have left may hold any lock at the fork.
    process = PROCESSES.Process(target=fork_and_leave)
    process.start()
    try:
        process.join(3 * TIMEOUT_S)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
        process.close()


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> WireOptions:
    folder: Path = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    status = os.spawnlp(
        os.P_WAIT, "openssl", "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
        "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=gangline",
        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate),
    )  # fmt: skip
    if status:
        pytest.skip("openssl is needed to make a certificate")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))
    return WireOptions(
        shared_memory=False, server_tls=server, client_tls=client, timeout_s=TIMEOUT_S
    )


def test_tensors_travel_encrypted_when_tls_is_on(tls: WireOptions) -> None:
    def body(group: wire.WireGroup) -> None:
        for length in (0, 3, 5000, 1_000_003):
            tensor = torch.full((length,), float(group.rank))
            group.all_reduce(tensor)
            assert torch.equal(tensor, torch.full((length,), 3.0))
        if group.rank == 0:
            group.send(torch.arange(100_000), 2)
        elif group.rank == 2:
            received = torch.empty(100_000, dtype=torch.int64)
            group.receive(received, 0)
            assert torch.equal(received, torch.arange(100_000))

    with nothing_left_behind():
        run_members(3, body, options=tls)


def test_a_member_without_tls_is_refused_when_the_others_use_it(tls: WireOptions) -> None:
    with listeners(2) as made, waiting_member(made, tls), stranger(made[0]) as sock:
        sock.sendall(frames.encode(hello()))
        refusal = read_frame(sock)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "TLS is on here, off there"


def test_an_unknown_certificate_is_refused(tls: WireOptions) -> None:
    strict = WireOptions(
        shared_memory=False,
        server_tls=tls.server_tls,
        client_tls=ssl.create_default_context(),
        timeout_s=TIMEOUT_S,
    )
    with listeners(2) as made:

        def attempt(rank: int) -> str:
            with pytest.raises(ExchangeError) as caught:
                join(rank, made, options=strict, timeout_s=1.0)
            return str(caught.value)

        assert "TLS could not be set up" in " ".join(in_threads(2, attempt))


def test_the_listener_s_thread_ends_with_it() -> None:
    before = threading.active_count()
    made = wire.listen()
    assert threading.active_count() == before + 1
    made.close()
    assert threading.active_count() == before
