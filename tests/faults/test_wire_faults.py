# SPDX-License-Identifier: Apache-2.0
"""Members of wire groups that die, stop, stay away or are broken off."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from forking import PROCESSES
from gangline.collectives import wire
from gangline.collectives.wire import WireAddress, WireGroup, WireOptions
from gangline.collectives.wire.tcp.ring import PAIR_BYTES
from gangline.spec.errors import ExchangeAborted, ExchangeError, ExchangeMismatch
from wire_members import (
    KEY,
    PROMPT_S,
    TIMEOUT_S,
    TOKEN,
    WAYS,
    in_threads,
    join,
    listeners,
    members,
    nothing_left_behind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

LARGE = 2_000_000


def error_of(call: Callable[[], object]) -> ExchangeError:
    with pytest.raises(ExchangeError) as caught:
        call()
    return caught.value


def _victim(rank: int, pipe: Connection, options: WireOptions) -> None:
    """A member that exchanges once, and then does as it is told."""
    with wire.listen() as listener:
        pipe.send(listener.address)
        group = wire.connect(
            KEY, rank=rank, addresses=pipe.recv(), listener=listener, token=TOKEN, options=options
        )
        group.all_reduce(torch.ones(10))
        pipe.send("ready")
        pipe.recv()
        while True:
            group.all_reduce(torch.ones(LARGE))


class Victim:
    """The process that something happens to."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process, self.pipe = process, pipe

    def suffer(self, sent: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, sent)
        if sent is signal.SIGKILL:
            self._process.join()
        else:
            status = Path(f"/proc/{self._process.pid}/status")
            while "State:\tT" not in status.read_text():
                time.sleep(0.001)


@contextlib.contextmanager
def group_with_victim(size: int, options: WireOptions) -> Iterator[tuple[list[WireGroup], Victim]]:
    """Members 0 … size - 2 here, and the last one in a process of its own."""
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_victim, args=(size - 1, theirs, options), daemon=True)
    process.start()
    try:
        with listeners(size - 1) as made:
            addresses = [*(listener.address for listener in made), ours.recv()]
            ours.send(addresses)
            groups = in_threads(
                size - 1,
                lambda rank: join(rank, made, options=options, addresses=addresses, timeout_s=30.0),
            )
            in_threads(size - 1, lambda rank: groups[rank].all_reduce(torch.ones(10)))
            assert ours.recv() == "ready"
            yield groups, Victim(process, ours)
            for group in groups:
                group.close()
    finally:
        process.kill()
        process.join()
        ours.close()
        theirs.close()


@WAYS
@pytest.mark.parametrize("while_exchanging", [True, False], ids=["exchanging", "idle"])
def test_everybody_learns_at_once_when_a_member_is_killed(
    options: WireOptions, while_exchanging: bool
) -> None:
    with group_with_victim(4, options) as (groups, victim), ThreadPoolExecutor(3) as pool:

        def endless(rank: int) -> float:
            error_of(lambda: [groups[rank].all_reduce(torch.ones(LARGE)) for _ in range(10**6)])
            return time.monotonic()

        waiting = [pool.submit(endless, rank) for rank in range(3)]
        if while_exchanging:
            victim.pipe.send("exchange")
            while groups[0].hops()[0].bytes < 10 * LARGE:
                time.sleep(0.001)
        killed = time.monotonic()
        victim.suffer(signal.SIGKILL)
        learnt = [future.result() for future in waiting]
    assert max(learnt) - killed < PROMPT_S


@WAYS
def test_an_abort_takes_effect_at_once_when_a_peer_is_stopped(options: WireOptions) -> None:
    with group_with_victim(2, options) as (groups, victim), ThreadPoolExecutor(1) as pool:
        victim.suffer(signal.SIGSTOP)
        started = threading.Event()

        def exchange() -> float:
            started.set()
            with pytest.raises(ExchangeAborted, match="broken off by this process"):
                groups[0].all_reduce(torch.ones(LARGE))
            return time.monotonic()

        waiting = pool.submit(exchange)
        started.wait()
        aborted = time.monotonic()
        groups[0].abort()
        assert waiting.result() - aborted < PROMPT_S


@WAYS
@pytest.mark.parametrize(
    "call",
    [
        lambda g: g.all_reduce(torch.ones(LARGE)),
        lambda g: g.all_reduce(torch.ones(3)),
        lambda g: g.reduce_scatter(torch.ones(LARGE)),
        lambda g: g.all_gather(torch.ones(LARGE)),
        lambda g: g.broadcast(torch.ones(20 * LARGE), g.rank),
        lambda g: g.send(torch.ones(20 * LARGE), 1),
        lambda g: g.receive(torch.ones(LARGE), 1),
    ],
    ids=["all_reduce", "small", "reduce_scatter", "all_gather", "broadcast", "send", "receive"],
)
def test_every_operation_can_be_aborted_when_the_others_stay_away(
    options: WireOptions, call: Callable[[WireGroup], object]
) -> None:
    with (
        nothing_left_behind(),
        members(3, options=options) as groups,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(error_of, lambda: call(groups[0]))
        while not waiting.running():
            pass
        aborted = time.monotonic()
        groups[0].abort()
        assert isinstance(waiting.result(), ExchangeAborted)
        assert time.monotonic() - aborted < PROMPT_S
        # The others learn it by themselves: a first exchange may have got all that it needed, and what
        # the first member had said before the abort may arrive, and differ from what they call.
        for group in groups[1:]:
            gone = error_of(lambda g=group: [g.all_reduce(torch.ones(3)) for _ in range(2)])
            assert "is gone" in str(gone) or isinstance(gone, ExchangeMismatch)
        assert "cannot be used any more" in str(error_of(lambda: call(groups[0])))


@WAYS
def test_a_group_that_was_aborted_before_refuses_the_next_operation(options: WireOptions) -> None:
    with members(2, options=options) as groups:
        groups[0].abort()
        groups[0].abort()
        with pytest.raises(ExchangeAborted):
            groups[0].all_reduce(torch.ones(3))


@WAYS
def test_the_awaited_member_is_named_when_the_time_runs_out(options: WireOptions) -> None:
    short = WireOptions(timeout_s=0.1, shared_memory=options.shared_memory)
    for call in (
        lambda group: group.all_reduce(torch.ones(3)),
        lambda group: group.all_reduce(torch.ones(LARGE)),
        lambda group: group.receive(torch.ones(3), 1),
    ):
        with members(2, options=short) as groups:
            said = str(error_of(lambda call=call, groups=groups: call(groups[0])))
            assert "waited 0.1 s for member 1" in said


def test_only_those_who_are_late_are_named_when_the_time_runs_out() -> None:
    with members(3, options=WireOptions(timeout_s=1.0)) as groups:
        said = in_threads(
            2, lambda rank: str(error_of(lambda: groups[rank].all_reduce(torch.ones(3))))
        )
    assert "waited 1 s for member 2, in vain" in said


@WAYS
def test_everybody_learns_it_when_a_member_leaves_after_it_did_its_part(
    options: WireOptions,
) -> None:
    with members(3, options=options) as groups, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(error_of, lambda: groups[1].all_reduce(torch.ones(3)))
        with ThreadPoolExecutor(1) as other:
            leaving = other.submit(error_of, lambda: groups[0].all_reduce(torch.ones(3)))
            time.sleep(0.05)
            groups[0].abort()
            leaving.result()
        assert "is gone" in str(waiting.result())


@WAYS
def test_a_member_that_left_in_good_order_breaks_nothing_that_was_done(
    options: WireOptions,
) -> None:
    for _ in range(20):
        with members(3, options=options) as groups:

            def last(rank: int, groups: list[WireGroup] = groups) -> None:
                groups[rank].all_reduce(torch.ones(100_000))
                groups[rank].close()

            in_threads(3, last)


class Proxy:
    """Stands between two members, and turns one bit of what passes after a while."""

    def __init__(self, target: WireAddress, *, intact_bytes: int) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        port = self._door.getsockname()[1]
        self.address = WireAddress(host="127.0.0.1", port=port, host_id=target.host_id)
        self._target, self._intact_bytes = target, intact_bytes
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        inner, _ = self._door.accept()
        outer = socket.create_connection((self._target.host, self._target.port))
        back = threading.Thread(target=self._carry, args=(outer, inner, None))
        back.start()
        self._carry(inner, outer, self._intact_bytes)
        back.join()
        inner.close()
        outer.close()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket, intact_bytes: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while piece := bytearray(source.recv(1 << 16)):
                if intact_bytes is not None and passed <= intact_bytes < passed + len(piece):
                    piece[intact_bytes - passed] ^= 4
                passed += len(piece)
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        self._door.close()


def test_corruption_is_counted_and_the_hop_named_when_checksums_are_on() -> None:
    options = WireOptions(
        timeout_s=TIMEOUT_S, shared_memory=False, checksum=True, segment_bytes=4096
    )
    with listeners(2) as made:
        proxy = Proxy(made[1].address, intact_bytes=50_000)
        addresses = [[made[0].address, proxy.address], [made[0].address, made[1].address]]

        def member(rank: int) -> str:
            group = join(rank, made, options=options, addresses=addresses[rank])
            # So long that it goes round: both need what the other makes of it.
            said = str(error_of(lambda: group.all_reduce(torch.ones(PAIR_BYTES // 4))))
            group.close()
            return said

        said = in_threads(2, member)
        proxy.close()
    assert said[1] == (
        "a segment from member 0 arrived corrupt: its checksum is wrong (1 so far on this hop)"
    )
    assert "member 1 is gone" in said[0]
