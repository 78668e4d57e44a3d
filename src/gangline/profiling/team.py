# SPDX-License-Identifier: Apache-2.0
"""A few processes on this machine that measure the links between them, and are gone afterwards.

    with Team(2) as team:
        link = team.ask("link")

Every member answers the same requests in the same order; member 0 measures.
"""

from __future__ import annotations

import multiprocessing
import secrets
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from gangline.collectives import GroupKey, wire
from gangline.spec.errors import LaunchError
from gangline.spec.exchange.address import WireAddress
from gangline.spec.profile import Link

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from types import TracebackType

START_S = 120.0
"""A process that imports torch on a busy machine takes long; a lost one must not hang us."""
_ROUNDS = 9
_TINY_BYTES = 8
_LARGE_BYTES = 8 << 20


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """What a member needs to find the others."""

    addresses: list[WireAddress]
    token: bytes


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Something to measure."""

    what: str
    """`link`, `ring` or `server`."""
    num_bytes: int = 0
    segment_bytes: int | None = None
    shared_memory: bool = True


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, all of them."""

    times_s: list[float] = []
    there_s: list[float] = []
    back_s: list[float] = []


class Team:
    """The processes. As a context manager it ends them, whatever happens."""

    def __init__(self, count: int) -> None:
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload([__name__])
        self._pipes: list[Connection[bytes, bytes]] = []
        self._members = []
        for rank in range(count):
            ours, theirs = processes.Pipe()
            member = processes.Process(target=_serve, args=(theirs, rank), daemon=True)
            member.start()
            theirs.close()
            self._pipes.append(ours)
            self._members.append(member)

    def __enter__(self) -> Team:
        try:
            addresses = [msgspec.json.decode(self._hear(i), type=WireAddress) for i in self._ranks]
            meeting = Meeting(addresses=addresses, token=secrets.token_bytes(16))
            self._tell(msgspec.msgpack.encode(meeting))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, request: Request) -> Answer:
        """What member 0 measured, when all are done."""
        self._tell(msgspec.msgpack.encode(request))
        answers = [msgspec.msgpack.decode(self._hear(rank), type=Answer) for rank in self._ranks]
        return answers[0]

    def close(self) -> None:
        """Ends all members."""
        for pipe in self._pipes:
            pipe.close()
        for member in self._members:
            member.join(1.0)
            if member.is_alive():
                member.kill()
            member.join()

    @property
    def _ranks(self) -> range:
        return range(len(self._pipes))

    def _tell(self, message: bytes) -> None:
        for pipe in self._pipes:
            pipe.send_bytes(message)

    def _hear(self, rank: int) -> bytes:
        try:
            if self._pipes[rank].poll(START_S):
                return self._pipes[rank].recv_bytes()
        except (EOFError, OSError):
            pass
        raise LaunchError(
            f"process {rank} of {len(self._pipes)} that measure links ended or did not answer within "
            f"{START_S:g} s; try again when the machine is less busy"
        )


def measured_link(answer: Answer) -> tuple[Link, Link]:
    """There and back, from a `link` answer."""
    latency_s = float(np.median(answer.times_s)) / 2
    return _link(answer.there_s, latency_s=latency_s), _link(answer.back_s, latency_s=latency_s)


def _link(times_s: list[float], *, latency_s: float) -> Link:
    low, middle, high = np.percentile(times_s, [25, 50, 75])
    moving_s = max(float(middle) - 2 * latency_s, 1e-9)
    return Link(
        latency_s=latency_s,
        bytes_per_s=_LARGE_BYTES / moving_s,
        spread=float((high - low) / middle),
    )


def _serve(pipe: Connection[bytes, bytes], rank: int) -> None:
    torch.set_num_threads(1)
    with wire.listen() as listener:
        pipe.send_bytes(msgspec.json.encode(listener.address))
        try:
            meeting = msgspec.msgpack.decode(pipe.recv_bytes(), type=Meeting)
            number = 0
            while True:
                request = msgspec.msgpack.decode(pipe.recv_bytes(), type=Request)
                number += 1
                options = wire.WireOptions(
                    segment_bytes=request.segment_bytes, shared_memory=request.shared_memory
                )
                group = wire.connect(
                    GroupKey("probe", number, 0),
                    rank=rank,
                    addresses=meeting.addresses,
                    listener=listener,
                    token=meeting.token,
                    options=options,
                )
                try:
                    answer = _MEASURES[request.what](group, request)
                finally:
                    group.close()
                pipe.send_bytes(msgspec.msgpack.encode(answer))
        except EOFError:
            return


def _measure_link(group: wire.WireGroup, request: Request) -> Answer:
    """Ping-pong of tiny messages, then large ones there with a tiny answer, then the other way."""
    tiny, large = torch.zeros(_TINY_BYTES // 4), torch.zeros(_LARGE_BYTES // 4)
    return Answer(
        times_s=[_ping_pong(group, tiny, tiny) for _ in range(3 * _ROUNDS)],
        there_s=[_ping_pong(group, large, tiny) for _ in range(_ROUNDS)],
        back_s=[_ping_pong(group, tiny, large) for _ in range(_ROUNDS)],
    )


def _ping_pong(group: wire.WireGroup, ping: torch.Tensor, pong: torch.Tensor) -> float:
    begin = time.perf_counter()
    if group.rank == 0:
        group.send(ping, 1)
        group.receive(pong, 1)
    else:
        group.receive(ping, 0)
        group.send(pong, 0)
    return time.perf_counter() - begin


def _measure_ring(group: wire.WireGroup, request: Request) -> Answer:
    tensor = torch.zeros(request.num_bytes // 4)
    return Answer(times_s=_repeated(group, lambda: group.all_reduce(tensor)))


def _measure_server(group: wire.WireGroup, request: Request) -> Answer:
    """Member 0 is the server: it receives and adds everybody's tensor, and sends everybody the sum."""
    tensor = torch.zeros(request.num_bytes // 4)
    received = torch.empty_like(tensor)

    def exchange() -> None:
        if group.rank == 0:
            for worker in range(1, group.size):
                group.receive(received, worker)
                tensor.add_(received)
            for worker in range(1, group.size):
                group.send(tensor, worker)
        else:
            group.send(tensor, 0)
            group.receive(tensor, 0)

    return Answer(times_s=_repeated(group, exchange))


def _repeated(group: wire.WireGroup, exchange: Callable[[], None]) -> list[float]:
    """The times of several exchanges, all members starting each one together."""
    together = torch.zeros(1)
    times = []
    for _ in range(_ROUNDS):
        group.all_reduce(together)
        begin = time.perf_counter()
        exchange()
        times.append(time.perf_counter() - begin)
    return times[1:]


_MEASURES = {"link": _measure_link, "ring": _measure_ring, "server": _measure_server}
