# SPDX-License-Identifier: Apache-2.0
"""Bytes and time with each compression, between two members over a slow link.

    sudo .venv/bin/python benchmarks/codec_costs.py --mbit 10 --elements 1000000 --rounds 5

Two processes, each in a network namespace of its own, are joined by a pair of interfaces whose way out
is limited by a token bucket. Each codec sums the same tensors as often as `--rounds` says; the first
exchange is not counted. Beside the time of an exchange stand the seconds of encoding and decoding
alone, which `gangline.planning.compression` takes its figures from, and what that predicts.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gangline.collectives import GroupKey, SoloGroup, wire
from gangline.collectives.compression import Compressor
from gangline.collectives.compression.codecs import codec_of
from gangline.collectives.wire import WireAddress, WireOptions
from gangline.planning.compression import exchange_s
from gangline.planning.cost.model import LinkCost
from gangline.spec.exchange.compression import POWERSGD, Compression, shown_kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

RESULTS = Path(__file__).parent / "results"
ADDRESSES = ("198.18.7.1", "198.18.7.2")
TIMEOUT_S = 120.0
_CLONE_NEWNET = 0x40000000
_BURST_BYTES = 16_000


class Setting(NamedTuple):
    """What is measured."""

    elements: int
    rounds: int
    names: tuple[str, ...]


class Measured(NamedTuple):
    """One codec, on one member."""

    sent_bytes: float
    dense_bytes: float
    exchange_s: float


# --- the link ----------------------------------------------------------------------------------------


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextmanager
def slow_link(mbit: float) -> Iterator[list[str]]:
    """Two namespaces, joined by a link that is limited in both directions."""
    names = [f"codecs-{os.getpid()}-{end}" for end in range(2)]
    try:
        for name in names:
            _do("ip", "netns", "add", name)
        ends = ["name", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0"]
        _do("ip", "link", "add", *ends, "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            _do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _do("ip", "-n", name, "link", "set", "eth0", "up")
            _do("ip", "-n", name, "link", "set", "lo", "up")
            limit = ["rate", f"{mbit}mbit", "burst", str(_BURST_BYTES), "latency", "200ms"]
            _do("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *limit)
        yield names
    finally:
        for name in names:
            if Path(f"/run/netns/{name}").exists():
                _do("ip", "netns", "delete", name)


def enter(namespace: str) -> None:
    """From now on this thread, and those that it starts, are in a namespace."""
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    finally:
        os.close(descriptor)


# --- a member's side ---------------------------------------------------------------------------------


def drawn(elements: int, rank: int) -> torch.Tensor:
    """A tensor whose elements differ in size like those of a gradient."""
    generator = torch.Generator().manual_seed(rank)
    sizes = torch.exp(torch.randn(-(-elements // 512), generator=generator))
    return torch.randn(elements, generator=generator) * sizes.repeat_interleave(512)[:elements]


def member(rank: int, namespace: str, setting: Setting, line: Connection) -> None:
    """Measures every codec with the other member, and sends what it took."""
    enter(namespace)
    torch.set_num_threads(1)
    listener = wire.listen(ADDRESSES[rank])
    try:
        line.send((listener.address.host, listener.address.port, listener.address.host_id))
        addresses = [WireAddress(host=h, port=p, host_id=i) for h, p, i in line.recv()]
        group = wire.connect(
            GroupKey("codecs", 0, 0),
            rank=rank,
            addresses=addresses,
            listener=listener,
            token=b"two members on one machine",
            timeout_s=TIMEOUT_S,
            options=WireOptions(timeout_s=TIMEOUT_S, shared_memory=False),
        )
        try:
            line.send({name: measured(group, name, setting) for name in setting.names})
        finally:
            group.close()
    finally:
        listener.close()


def measured(group: Any, name: str, setting: Setting) -> Measured:
    """The median exchange, after one that is not counted."""
    compressor = Compressor(Compression.parse(name))
    tensor = drawn(setting.elements, group.rank)
    times_s = []
    for _ in range(setting.rounds + 1):
        given = tensor.clone()
        group.all_reduce(torch.zeros(1))  # both begin at once
        times_s.append(timed(lambda given=given: compressor.all_reduce(group, given)))
    traffic = compressor.traffic
    return Measured(
        traffic.sent_bytes / traffic.exchanges,
        traffic.dense_bytes / traffic.exchanges,
        statistics.median(times_s[1:]),
    )


def timed(action: Callable[[], object]) -> float:
    """Seconds that an action takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


# --- a codec alone -----------------------------------------------------------------------------------


class Pretender(SoloGroup):
    """One of two members, whose exchanges cost nothing."""

    size = 2


def codec_times(name: str, setting: Setting) -> tuple[float, float]:
    """Nanoseconds per element to encode and to decode; of PowerSGD both together, per rank."""
    compression, tensor = Compression.parse(name), drawn(setting.elements, 0)
    if compression.is_none:
        return 0.0, 0.0
    if compression.kind == POWERSGD:
        compressor, group = Compressor(compression), Pretender()
        whole = [timed(lambda: compressor.all_reduce(group, tensor.clone())) for _ in range(4)]
        return min(whole) / setting.elements / compression.number * 1e9, 0.0
    codec = codec_of(compression, generator=np.random.default_rng(0))
    message = codec.encode(tensor)
    encode_s = min(timed(lambda: codec.encode(tensor)) for _ in range(4))
    total = torch.zeros_like(tensor)
    decode_s = min(
        timed(lambda: total.add_(codec.decode(message, setting.elements))) for _ in range(4)
    )
    return encode_s / setting.elements * 1e9, decode_s / setting.elements * 1e9


# --- the table ---------------------------------------------------------------------------------------


def run_members(namespaces: list[str], setting: Setting) -> dict[str, Measured]:
    """What the first member measured."""
    context = multiprocessing.get_context("spawn")
    lines, processes = [], []
    try:
        for rank, namespace in enumerate(namespaces):
            ours, theirs = context.Pipe()
            arguments = (rank, namespace, setting, theirs)
            processes.append(context.Process(target=member, args=arguments, daemon=True))
            processes[-1].start()
            theirs.close()
            lines.append(ours)
        addresses = [line.recv() for line in lines]
        for line in lines:
            line.send(addresses)
        first, _ = [line.recv() for line in lines]
        return first
    finally:
        for process in processes:
            process.join(TIMEOUT_S)
            process.kill()


def table(measured_by: dict[str, Measured], setting: Setting, *, mbit: float) -> str:
    link = LinkCost(latency_s=1e-4, s_per_byte=8 / (mbit * 1e6))
    lines = [
        f"{setting.elements:,} elements, 2 members, {mbit:g} Mbit/s each way, "
        f"median of {setting.rounds} exchanges",
        "",
        "| codec | bytes sent | of dense | exchange | predicted | encode | decode |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in measured_by.items():
        predicted_s = exchange_s(
            Compression.parse(name), num_elements=setting.elements, num_members=2, link=link
        )
        encode_ns, decode_ns = codec_times(name, setting)
        lines.append(
            f"| {name} | {one.sent_bytes:,.0f} | {one.sent_bytes / one.dense_bytes:.2%} "
            f"| {one.exchange_s * 1e3:.1f} ms | {predicted_s * 1e3:.1f} ms "
            f"| {encode_ns:.1f} ns | {decode_ns:.1f} ns |"
        )
    return "\n".join([*lines, "", "encode and decode: per element; of powersgd both, per rank"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mbit", type=float, default=10.0)
    parser.add_argument("--codecs", nargs="+", default=shown_kinds())
    given = parser.parse_args()
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        sys.exit("a slow link needs root, and the commands `ip` and `tc` (iproute2)")
    torch.set_num_threads(1)
    setting = Setting(given.elements, given.rounds, tuple(given.codecs))
    with slow_link(given.mbit) as namespaces:
        text = table(run_members(namespaces, setting), setting, mbit=given.mbit)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "codec_costs.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
