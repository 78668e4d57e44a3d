# SPDX-License-Identifier: Apache-2.0
"""The exchange between the leaders of teams: on a thread of its own, while everybody trains on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import torch

from gangline.collectives import GroupKey, gather_bytes
from gangline.collectives.compression import Compressor
from gangline.spec.exchange.compression import NONE, Compression
from gangline.spec.exchange.compression_format import ring_bytes
from gangline.worker.groups.side import SideGroup, SideTask
from gangline.worker.sync.teams.replica import Copy

if TYPE_CHECKING:
    from torch import Tensor

    from gangline.collectives import Group
    from gangline.collectives.transports import Door
    from gangline.protocol.messages import RoundOpened
    from gangline.worker.sync.teams.replica import Replica

LEVEL = "teams"


class Mean(NamedTuple):
    """What the leaders' exchange brought."""

    copy: Copy
    took_s: float
    cpu_s: float
    """What the exchange took from this process's computing."""
    sent_bytes: int
    apart: float = 0.0
    """How far this team's parameters are from the mean."""
    moved: float = 0.0
    """How far the mean is from what the teams had in common before."""
    change: Tensor | None = None
    """What takes this team to the mean."""


Exchange: TypeAlias = SideTask[Mean]
"""One round's exchange, under way."""


class Leaders:
    """The group of all teams' leaders, kept from round to round while they stay the same."""

    def __init__(self, door: Door, *, run: str, worker: int) -> None:
        self._run = run
        self._worker = worker
        self._number = -1
        self._side = SideGroup(door)
        self._compressor: Compressor | None = None
        self._is_compressed = False
        """Whether the last exchange was."""

    def exchange(self, opened: RoundOpened, copy: Copy, reference: Tensor, samples: int) -> Mean:
        """The mean of all teams' copies, weighted by the samples that each stands for.

        `reference` is what all teams had in common after their last merge: where the exchange is
        compressed, the way from there travels. A team whose values are not numbers counts nothing,
        unless no team's are.
        """
        start_s, start_cpu_s = time.perf_counter(), time.thread_time()
        group = self._enter(opened)
        is_finite = copy.is_finite
        own = msgspec.msgpack.encode((samples, len(copy.values), copy.counters, is_finite))
        try:
            rows = [msgspec.msgpack.decode(row) for row in gather_bytes(group, own)]
            values, counters = copy.values, copy.counters
            if len({(size, len(counts)) for _, size, counts, _ in rows}) > 1:
                # Somebody has made no step yet, and has no optimizer state: each keeps its own.
                values = values[: min(size for _, size, _, _ in rows)]
                counters = ()
            counting = [row for row in rows if row[3]] or rows
            total = sum(count for count, *_ in counting)
            weight = samples / total if total else 1 / len(counting)
            if len(counting) < len(rows) and not is_finite:
                values, weight = torch.zeros_like(values), 0.0
            summed, sent_bytes = self._sum(group, opened, values, reference, weight=weight)
        except Exception:
            self.leave()
            raise
        if counters:
            counters = tuple(max(column) for column in zip(*(row[2] for row in rows), strict=True))
        return Mean(
            Copy(summed, counters),
            took_s=time.perf_counter() - start_s,
            cpu_s=time.thread_time() - start_cpu_s,
            sent_bytes=sent_bytes,
        )

    def _sum(
        self,
        group: Group,
        opened: RoundOpened,
        values: Tensor,
        reference: Tensor,
        *,
        weight: float,
    ) -> tuple[Tensor, int]:
        """The weighted sum over all leaders, and how many bytes were sent for it."""
        # Who is alone has its mean already.
        self._is_compressed = opened.compression != NONE and group.size > 1
        if not self._is_compressed:
            summed = values * weight
            group.all_reduce(summed)
            return summed, round(ring_bytes(summed.nbytes, num_members=group.size))
        compression = Compression.parse(opened.compression)
        if self._compressor is None or self._compressor.compression != compression:
            self._compressor = Compressor(compression)
        before = self._compressor.traffic.sent_bytes
        way = (values - reference).to(torch.float32) * weight
        self._compressor.all_reduce(group, way)
        return reference + way.to(values), self._compressor.traffic.sent_bytes - before

    def undo(self) -> None:
        """The last exchange was not used: what it left out was not sent."""
        if self._compressor is not None and self._is_compressed:
            self._compressor.undo()

    def _enter(self, opened: RoundOpened) -> Group:
        group = self._side.group
        if group is not None and opened.group == self._number:
            return group
        self.leave()
        self._number = opened.group
        if len(opened.leaders) == 1:
            return self._side.enter_alone()
        return self._side.connect(
            GroupKey(run=self._run, view=opened.group, attempt=0, level=LEVEL),
            rank=opened.leaders.index(self._worker),
            addresses=opened.addresses,
        )

    def break_off(self, exchange: Exchange) -> None:
        """Ends an exchange that will not come to anything, from another thread."""
        self._side.break_off(exchange)
        self._number = -1

    def leave(self) -> None:
        """Closes the group, if there is one."""
        self._side.leave()
        self._number = -1


def compared(mean: Mean, copy: Copy, reference: Tensor, replica: Replica) -> Mean:
    """The same, with what follows from it: vectors as long as the model, which take their time."""
    count, values = replica.num_parameters, mean.copy.values
    return mean._replace(
        apart=_distance(copy.values[:count], values[:count]),
        moved=_distance(values[:count], reference[:count]),
        change=replica.difference(values, copy.values),
    )


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The length of the difference of two flat vectors."""
    return float(torch.linalg.vector_norm(one - other))
