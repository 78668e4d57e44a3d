# SPDX-License-Identifier: Apache-2.0
"""How fast one worker pushes to parameter servers and pulls from them, against a plain socket.

    python benchmarks/parameter_server_throughput.py --servers 1 2 4 8 --megabytes 32

Each server is a process that holds one shard of so many megabytes. The plain socket carries the same
bytes between the same processes at the same time: what the link can do. A push is checked and staged by
the server; a pull sends all values, which are there; a pull after an update has the server make a step
of SGD and copy its values first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from gangline.collectives import GroupKey, wire
from gangline.paramserver.service.client import ServiceClient
from gangline.paramserver.service.link import pair_of
from gangline.paramserver.service.server import ServiceHost
from gangline.paramserver.service.shard import Shard, shard_indices
from gangline.spec.serving import Entry, Host, Part, Serving, ShardPlace
from harness import Comparison, compare, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from gangline.collectives import Group

TRANSPORTS = {
    "shared memory": wire.WireOptions(),
    "TCP": wire.WireOptions(shared_memory=False),
}
TOKEN = b"the token of this benchmark only"
FORK = multiprocessing.get_context("fork")
PIECES = 4
"""Parameters per server."""
BLOCK = 1 << 20


class Door:
    """Connects by a listener, for one serving of one transport."""

    def __init__(self, listener: wire.Listener, transport: str) -> None:
        self._listener, self._transport = listener, transport

    def connect(self, level: str, *, rank: int, peer: Host, serving_number: int) -> Group:
        return wire.connect(
            GroupKey(f"benchmark {self._transport}", serving_number, 0, level),
            rank=rank,
            addresses=pair_of(self._listener.address, peer.address, rank=rank),
            listener=self._listener,
            token=TOKEN,
            options=TRANSPORTS[self._transport],
        )

    def cancel(self, level: str, *, serving_number: int) -> None:
        key = GroupKey(f"benchmark {self._transport}", serving_number, 0, level)
        self._listener.cancel(key)


def model(servers: int, megabytes: int) -> list[nn.Parameter]:
    length = (megabytes << 20) // (4 * PIECES)
    return [nn.Parameter(torch.zeros(length)) for _ in range(servers * PIECES)]


def serve(number: int, pipe: Connection) -> None:
    """A process that serves a shard for each message (serving, transport, megabytes)."""
    torch.set_num_threads(1)
    plain = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=carry, args=(plain,), daemon=True).start()
    with wire.listen() as listener:
        pipe.send((listener.address, plain.getsockname()))
        host: ServiceHost | None = None
        while (message := pipe.recv()) is not None:
            serving, transport, megabytes = message
            if host is not None:
                host.close()
            first = model(len(serving.shards), megabytes)
            indices = shard_indices(first, serving)
            optimizer = SGD(first, lr=0.1)
            host = ServiceHost(
                Door(listener, transport),
                own=number,
                make_shard=lambda n, i=indices, p=first, o=optimizer: Shard(n, i[n], p, o),
            )
            host.follow(serving)
            pipe.send(None)
        if host is not None:
            host.close()


def carry(plain: socket.socket) -> None:
    """Takes so many bytes and says so, or gives as many: what a plain socket does."""
    sock, _ = plain.accept()
    buffer = bytearray(BLOCK)
    while header := sock.recv(9, socket.MSG_WAITALL):
        left = int.from_bytes(header[1:], "big")
        if header[:1] == b"<":
            while left:
                left -= sock.recv_into(buffer, min(left, BLOCK))
            sock.sendall(b"!")
        else:
            sock.sendall(memoryview(bytearray(left)))


class Servers:
    """The server processes, and the plain sockets to them."""

    def __init__(self, count: int) -> None:
        self.pipes: list[Connection] = []
        processes = []
        for number in range(1, count + 1):
            here, there = FORK.Pipe()
            process = FORK.Process(target=serve, args=(number, there), daemon=True)
            process.start()
            processes.append(process)
            self.pipes.append(here)
        places = [pipe.recv() for pipe in self.pipes]
        self.addresses = [address for address, _ in places]
        self.socks = [socket.create_connection(place) for _, place in places]
        self._processes = processes

    def close(self) -> None:
        for sock in self.socks:
            sock.close()
        for pipe, process in zip(self.pipes, self._processes, strict=True):
            pipe.send(None)
            process.join(10.0)


class Bench:
    """One client, and so many servers."""

    def __init__(
        self, servers: Servers, count: int, transport: str, megabytes: int, number: int
    ) -> None:
        self._servers, self._count = servers, count
        self._bytes = megabytes << 20
        self._listener = wire.listen()
        own = Host(worker=0, address=self._listener.address)
        hosts = [Host(worker=i + 1, address=servers.addresses[i]) for i in range(count)]
        serving = Serving(
            number=number,
            shards=tuple(ShardPlace(primary=host.worker) for host in hosts),
            hosts=(own, *hosts),
        )
        for pipe in servers.pipes[:count]:
            pipe.send((serving, transport, megabytes))
        for pipe in servers.pipes[:count]:
            pipe.recv()
        parameters = model(count, megabytes)
        self._gradients: list[Tensor] = [torch.ones(p.shape) for p in parameters]
        self._client = ServiceClient(
            Door(self._listener, transport), own=0, team=0, parameters=parameters
        )
        self._client.follow(serving)
        self._clock = 0
        self._pool = ThreadPoolExecutor(count)
        self._landing = bytearray(self._bytes)

    def push(self) -> float:
        took_s = timed(lambda: self._client.push(self._clock, self._gradients))
        entry = self._next()
        self._client.pull_state(entry.number + 1, [entry])  # plain SGD has none: it only applies
        return took_s

    def pull(self) -> float:
        self._client.spoil()  # else nothing has changed, and nothing would be sent
        return timed(lambda: self._client.pull(self._clock))

    def pull_after_update(self) -> float:
        self._client.push(self._clock, self._gradients)
        entry = self._next()
        return timed(lambda: self._client.pull(entry.number + 1, [entry]))

    def send_plain(self) -> float:
        return self._plain(self._send_one)

    def receive_plain(self) -> float:
        return self._plain(self._receive_one)

    def close(self) -> None:
        self._client.close()
        self._listener.close()
        self._pool.shutdown()

    def _next(self) -> Entry:
        self._clock += 1
        return Entry(self._clock - 1, (Part(0, self._clock - 1, 1.0),))

    def _plain(self, carry_one: Callable[[int], Any]) -> float:
        return timed(lambda: list(self._pool.map(carry_one, range(self._count))))

    def _send_one(self, index: int) -> None:
        sock, views = self._servers.socks[index], self._gradients[index * PIECES :][:PIECES]
        sock.sendall(b"<" + self._bytes.to_bytes(8, "big"))
        for view in views:
            sock.sendall(view.numpy().data)
        sock.recv(1)

    def _receive_one(self, index: int) -> None:
        sock, left = self._servers.socks[index], self._bytes
        sock.sendall(b">" + left.to_bytes(8, "big"))
        view = memoryview(self._landing)
        while left:
            left -= sock.recv_into(view[self._bytes - left :], min(left, BLOCK))


def timed(do: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    do()
    return time.perf_counter() - began_s


def with_rates(comparison: Comparison, megabytes: int) -> Comparison:
    rates = {row.name: (megabytes << 20) / row.median_s / 1e9 for row in comparison.rows}
    return comparison.with_extra("GB/s per server", rates)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--megabytes", type=int, default=16, help="per server")
    parser.add_argument("--repeats", type=int, default=6)
    arguments = parser.parse_args()
    servers = Servers(max(arguments.servers))
    found: dict[str, Comparison] = {}
    number = 0
    for transport in TRANSPORTS:
        for count in arguments.servers:
            bench = Bench(servers, count, transport, arguments.megabytes, number)
            number += 1
            ways = {
                "push": {"plain socket": bench.send_plain, "push": bench.push},
                "pull": {
                    "plain socket": bench.receive_plain,
                    "pull": bench.pull,
                    "pull after an update": bench.pull_after_update,
                },
            }
            for way, contenders in ways.items():
                made = compare(contenders, baseline="plain socket", repeats=arguments.repeats)
                title = f"{way}, {transport}, {count} servers of {arguments.megabytes} MB"
                found[title] = with_rates(made, arguments.megabytes)
            bench.close()
    servers.close()
    print(save("parameter_server_throughput", found))


if __name__ == "__main__":
    main()
