# SPDX-License-Identifier: Apache-2.0
"""Three members on machines of their own, two of which exchange directly or by way of the third."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from gangline.collectives import GroupKey
from gangline.collectives.transports import WireDoor
from gangline.emulation.islands import address_of
from gangline.emulation.namespaces import inside
from gangline.emulation.networks import EmulatedNetwork
from gangline.files.certificates import make_tls_files
from gangline.spec.cluster import Cluster, Node
from gangline.spec.errors import UsageError
from gangline.spec.wire import WireSettings
from harness import Comparison, compare

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WAYS = ("direct", "relayed")


def networked(stack: ExitStack, hosts: int) -> list[int]:
    """The namespaces of so many machines on one switch; ends this where none can be made."""
    cluster = Cluster(nodes=tuple(Node(name=f"host{number}") for number in range(hosts)))
    try:
        network = stack.enter_context(EmulatedNetwork(cluster))
    except UsageError as error:
        raise SystemExit(f"skipped: {error}") from error
    return [enclosure.namespace for enclosure in network.enclosures]


def member(rank: int, settings: WireSettings, line: Connection) -> None:
    """One of three members: makes both groups, and exchanges in one of them whenever it is asked."""
    torch.set_num_threads(1)
    make: dict[str, Any] = {
        "token": "the token of three members",
        "timeout_s": 60.0,
        "settings": settings,
    }
    doors = [WireDoor(address_of(rank), uses_memory=False, **make) for _ in WAYS]
    line.send([door.address for door in doors])
    groups = {
        way: door.connect(GroupKey(way, 0, 0), rank=rank, addresses=addresses)
        for way, door, addresses in zip(WAYS, doors, line.recv(), strict=True)
    }
    for way, num_bytes, rounds in iter(line.recv, None):
        group, tensor = groups[way], torch.ones(num_bytes // 4)
        group.all_reduce(torch.zeros(1))  # all begin at once
        began = time.perf_counter()
        for turn in range(2 * rounds * (rank < 2)):
            if turn % 2 == rank:
                group.send(tensor, to=1 - rank)
            else:
                group.receive(tensor, source=1 - rank)
        line.send((time.perf_counter() - began) / (2 * rounds))
    for one in (*groups.values(), *doors):
        one.close()


def relayed(megabytes: list[int], repeats: int, *, is_plain: bool) -> dict[str, Comparison]:
    """Both ways against each other, for each size."""
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = WireSettings()
        if not is_plain:
            names = [address_of(rank) for rank in range(3)]
            settings = make_tls_files(folder, run="relay", hosts=names).applied_to(settings)
        lines = []
        for rank, namespace in enumerate(networked(stack, 3)):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=member, args=(rank, settings, theirs), daemon=True)
            inside(namespace, process.start)
            theirs.close()
            stack.callback(process.join, 60.0)
            stack.callback(ours.close)
            lines.append(ours)

        def ask(question: object) -> list[Any]:
            for line in lines:
                line.send(question)
            return [line.recv() for line in lines]

        direct, hidden = map(list, zip(*[line.recv() for line in lines], strict=True))
        for rank in range(2):  # nobody listens there: who calls it fails
            hidden[rank] = msgspec.structs.replace(hidden[rank], port=1, calls_out=True)
        for line in lines:
            line.send([direct, hidden])
        found = {}
        for size in megabytes:
            job = (size * 10**6, max(2, 50 // size))
            runs = {way: lambda way=way, job=job: max(ask((way, *job))) for way in WAYS}
            result = compare(runs, baseline="direct", repeats=repeats)
            speeds = {row.name: size / row.median_s for row in result.rows}
            found[f"{size} MB from one member to another"] = result.with_extra("MB/s", speeds)
        for line in lines:
            line.send(None)
    return found
