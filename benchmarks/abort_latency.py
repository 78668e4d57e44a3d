# SPDX-License-Identifier: Apache-2.0
"""How fast the wire transport lets go of an exchange, and how fast it makes a group.

    python benchmarks/abort_latency.py --attempts 50

Abort: this process is in an exchange in which its peer (alive, or stopped) does not take part, and
another thread aborts it: the time from the call of `abort` to the end of the exchange. Death: the
time from the death of the peer until the exchange fails by itself. Creation: the time that the
slowest of n members, each in a process of its own, needs for `connect`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import socket
import statistics
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import torch

from gangline.collectives import GroupKey, wire
from gangline.spec.errors import ExchangeError
from harness import RESULTS, machine_facts

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

TRANSPORTS = {
    "shared memory": wire.WireOptions(),
    "TCP": wire.WireOptions(shared_memory=False),
}
TOKEN = b"the token of this benchmark only"
FORK = multiprocessing.get_context("fork")
ELEMENTS = 4 << 20


def connect(
    listener: wire.Listener, rank: int, addresses: list[wire.WireAddress], view: int, transport: str
) -> wire.WireGroup:
    return wire.connect(
        GroupKey("benchmark", view, 0),
        rank=rank,
        addresses=addresses,
        listener=listener,
        token=TOKEN,
        options=TRANSPORTS[transport],
    )


def member(rank: int, pipe: Connection, transport: str) -> None:
    """A process that joins one group per message (view, start, addresses), until told to end."""
    torch.set_num_threads(1)
    with wire.listen() as listener:
        pipe.send(listener.address)
        while (request := pipe.recv()) is not None:
            view, start, addresses = request
            time.sleep(max(0.0, start - time.time()))
            started = time.perf_counter()
            group = connect(listener, rank, addresses, view, transport)
            pipe.send(time.perf_counter() - started)
            pipe.recv()
            group.close()


class Peers:
    """Members in processes of their own."""

    def __init__(self, ranks: range, transport: str) -> None:
        self.processes = []
        self.pipes: list[Connection] = []
        for rank in ranks:
            ours, theirs = FORK.Pipe()
            process = FORK.Process(target=member, args=(rank, theirs, transport), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        self.addresses = [pipe.recv() for pipe in self.pipes]

    def tell(self, message: object) -> None:
        for pipe in self.pipes:
            pipe.send(message)

    def close(self) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join()
            pipe.close()


def creation_s(size: int, transport: str, *, attempts: int) -> list[float]:
    """The slowest member's time, for each attempt."""
    peers = Peers(range(size), transport)
    times = []
    for view in range(attempts):
        # A common start, so that the lateness of one does not count as the slowness of another.
        peers.tell((view, time.time() + 0.05, peers.addresses))
        times.append(max(pipe.recv() for pipe in peers.pipes))
        peers.tell("close")
    peers.close()
    return times


def end_of_exchange(group: wire.WireGroup, *, trigger: threading.Thread) -> float:
    """When an exchange that the trigger ends has ended."""
    tensor = torch.ones(ELEMENTS)
    trigger.start()
    try:
        while True:
            group.all_reduce(tensor)
    except ExchangeError:
        return time.perf_counter()
    finally:
        trigger.join()


def abort_s(transport: str, *, attempts: int, is_stopped: bool) -> list[float]:
    """From the call of abort to the end of the exchange."""
    peers = Peers(range(1, 2), transport)
    pid = peers.processes[0].pid
    assert pid is not None
    times = []
    with wire.listen() as listener:
        addresses = [listener.address, *peers.addresses]
        for view in range(attempts):
            peers.tell((view, 0.0, addresses))
            group = connect(listener, 0, addresses, view, transport)
            peers.pipes[0].recv()
            if is_stopped:
                os.kill(pid, signal.SIGSTOP)
            called: list[float] = []

            def abort(group: wire.WireGroup = group, called: list[float] = called) -> None:
                time.sleep(0.01)
                called.append(time.perf_counter())
                group.abort()

            ended = end_of_exchange(group, trigger=threading.Thread(target=abort))
            times.append(ended - called[0])
            group.close()
            if is_stopped:
                os.kill(pid, signal.SIGCONT)
            peers.tell("close")
    peers.close()
    return times


def wake_s(*, attempts: int) -> list[float]:
    """What waking a thread that waits at a socket takes here: nothing can take effect sooner."""
    times = []
    for _ in range(attempts):
        ear, bell = socket.socketpair()
        rung: list[float] = []

        def ring(bell: socket.socket = bell, rung: list[float] = rung) -> None:
            time.sleep(0.01)
            rung.append(time.perf_counter())
            bell.send(b"x")

        thread = threading.Thread(target=ring)
        thread.start()
        with ear, bell:
            ear.recv(1)
            times.append(time.perf_counter() - rung[0])
            thread.join()
    return times


def death_s(transport: str, *, attempts: int) -> list[float]:
    """From the death of the peer to the end of the exchange."""
    times = []
    with wire.listen() as listener:
        for view in range(attempts):
            peers = Peers(range(1, 2), transport)
            addresses = [listener.address, *peers.addresses]
            peers.tell((view, 0.0, addresses))
            group = connect(listener, 0, addresses, view, transport)
            peers.pipes[0].recv()
            killed: list[float] = []

            def kill(
                pid: int | None = peers.processes[0].pid, killed: list[float] = killed
            ) -> None:
                time.sleep(0.01)
                assert pid is not None
                killed.append(time.perf_counter())
                os.kill(pid, signal.SIGKILL)

            ended = end_of_exchange(group, trigger=threading.Thread(target=kill))
            times.append(ended - killed[0])
            group.close()
            peers.processes[0].join()
            peers.close()
    return times


def line(title: str, times: list[float]) -> str:
    ordered = sorted(times)
    shown = [
        statistics.median(ordered),
        ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))],
        ordered[-1],
    ]
    cells = [f"{value * 1e3:.2f}" for value in shown]
    return f"| {title} | {' | '.join(cells)} | {len(times)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attempts", type=int, default=50)
    parser.add_argument("--members", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    chosen = parser.parse_args()
    few = max(3, chosen.attempts // 5)
    found = {"for comparison: a thread is woken": wake_s(attempts=chosen.attempts)}
    for name in TRANSPORTS:
        for size in chosen.members:
            found[f"{name}: a group of {size} is made"] = creation_s(size, name, attempts=few)
        for state, is_stopped in {"alive": False, "stopped": True}.items():
            title = f"{name}: an abort takes effect, peer {state}"
            found[title] = abort_s(name, attempts=chosen.attempts, is_stopped=is_stopped)
        found[f"{name}: the death of a peer is noticed"] = death_s(name, attempts=few)
    lines = ["| what | median (ms) | 95 % | worst | attempts |", "|---|---|---|---|---|"]
    lines += [line(title, times) for title, times in found.items()]
    facts = machine_facts()
    lines += ["", ", ".join(f"{name} {value}" for name, value in facts.items())]
    markdown = "# abort_latency\n\n" + "\n".join(lines) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "abort_latency.md").write_text(markdown, encoding="utf-8")
    encoded = msgspec.json.encode({"machine": facts, "seconds": found})
    (RESULTS / "abort_latency.json").write_bytes(msgspec.json.format(encoded))
    print(markdown)


if __name__ == "__main__":
    main()
