# SPDX-License-Identifier: Apache-2.0
"""The group that a tree of groups makes: it sums inside its groups, across their leaders, and back.

Whatever fails at one level ends all groups of this member, so that the members of each of them learn
of it and end theirs: within a moment everybody knows. Only who waits for a member of its own group
that has not come yet learns of what failed elsewhere when that one comes, or is broken off.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import msgspec
import torch
from torch import Tensor

from gangline.collectives.elements import HALVES, element_of
from gangline.collectives.hierarchy.levels import naming
from gangline.collectives.hierarchy.pipeline import Piece, Pipeline
from gangline.collectives.protocol import part_bounds
from gangline.collectives.staging import Staging
from gangline.collectives.wire.group import check_header
from gangline.spec.errors import ExchangeAborted, ExchangeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gangline.collectives.compression import Verdict
    from gangline.collectives.hierarchy.levels import Level
    from gangline.collectives.hierarchy.pairs import Pairs
    from gangline.collectives.protocol import Group, GroupKey, Header
    from gangline.spec.exchange.hop import HopStats

SEGMENT_BYTES = 2 << 20
"""The piece in which large tensors go through the levels. Every piece pays the latency of each level
again, so it is not smaller: half of the unit in which gradients are exchanged."""

T = TypeVar("T")


class TreeGroup:
    """One member's end of a tree (see `gangline.collectives.protocol.Group`)."""

    def __init__(
        self,
        key: GroupKey,
        *,
        rank: int,
        size: int,
        levels: Sequence[Level],
        pairs: Pairs,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.key, self.rank, self.size = key, rank, size
        self._segment_bytes = segment_bytes
        carriers = dict.fromkeys(level.group.transport for level in levels)
        self.transport = f"tree of {', '.join(carriers)}" if carriers else "tree"
        self._levels, self._pairs = levels, pairs
        self._staging = Staging()
        self._failure: str | None = None
        self._is_aborted = threading.Event()

    def all_reduce(self, tensor: Tensor, header: Header | None = None) -> None:
        self._all_reduce(tensor, header, unit=None)

    def bring(self, tensor: Tensor, ready: torch.cuda.Event) -> None:
        """A unit on a device is summed soon: begins to bring it to host memory, where it must."""
        if not self._encodes(tensor):
            self._staging.bring(tensor, ready)

    def all_reduce_unit(self, tensor: Tensor, header: Header | None, *, unit: int) -> None:
        """As `all_reduce`, for a unit of the gradient: groups that compress do so with it."""
        self._all_reduce(tensor, header, unit=unit)

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        element_of(tensor, summed=True)
        host = self._staging.host_of(tensor)
        self._do(lambda: self._sum(host, None))
        bounds = part_bounds(tensor.numel(), self.size)
        part = host.detach().view(-1)[bounds[self.rank] : bounds[self.rank + 1]]
        return part.to(tensor.device, copy=True)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Each member adds its row to rows of zeros, as whole numbers: nothing is rounded."""
        element_of(tensor, summed=False)
        host = self._staging.host_of(tensor).detach()
        num_bytes = host.nbytes
        rows = torch.zeros((self.size, -(-num_bytes // 8)), dtype=torch.int64)
        as_bytes = rows.view(torch.uint8)
        as_bytes[self.rank, :num_bytes] = host.reshape(-1).view(torch.uint8)
        self._do(lambda: self._sum(rows, None))
        parts = [row[:num_bytes].view(tensor.dtype).view(tensor.shape) for row in as_bytes]
        return [part.to(tensor.device) for part in parts]

    def broadcast(self, tensor: Tensor, root: int) -> None:
        element_of(tensor, summed=False)
        if not 0 <= root < self.size:
            raise UsageError(f"root {root}: the members are 0 to {self.size - 1}")
        host = self._staging.host_of(tensor)
        self._do(lambda: self._pass_on(host, root))
        self._staging.write_back(host, tensor)

    def send(self, tensor: Tensor, to: int) -> None:
        element_of(tensor, summed=False)
        self._check_peer(to)
        host = self._staging.host_of(tensor)

        def send() -> None:
            group, place = self._shared_with(to)
            group.send(host, place)

        self._do(send)

    def receive(self, tensor: Tensor, source: int) -> None:
        element_of(tensor, summed=False)
        self._check_peer(source)
        host = self._staging.host_of(tensor)

        def receive() -> None:
            group, place = self._shared_with(source)
            group.receive(host, place)

        self._do(receive)
        self._staging.write_back(host, tensor)

    def take_verdicts(self) -> list[Verdict]:
        """Which codecs were found to pay at this member's levels, and which not; each once."""
        said = [level.take_verdict() for level in self._levels]
        return [verdict for verdict in said if verdict is not None]

    def hops(self) -> list[HopStats]:
        """What was measured on the way to each peer of each level."""
        return [] if self._failure else list(self._measured())

    def abort(self) -> None:
        self._is_aborted.set()
        self._break_off()

    def close(self) -> None:
        self._failure = self._failure or "it is closed"
        for level in self._levels:
            level.group.close()
        self._pairs.close()

    # What goes on between the members

    def _all_reduce(self, tensor: Tensor, header: Header | None, *, unit: int | None) -> None:
        element_of(tensor, summed=True)
        if header is not None:
            check_header(header)
        stays = unit is not None and self._encodes(tensor)
        host = tensor if stays else self._staging.host_of(tensor)
        self._do(lambda: self._sum(host, header, unit=unit))
        self._staging.write_back(host, tensor)

    def _encodes(self, tensor: Tensor) -> bool:
        """Whether all that is done with a unit is done by one level that compresses it where it is."""
        is_one = len(self._levels) == 1 and tensor.is_contiguous()
        return is_one and self._levels[0].encodes_on(tensor.device)

    def _sum(self, host: Tensor, header: Header | None, *, unit: int | None = None) -> None:
        if self._levels:
            pieces = self._cut(host.detach().view(-1), header, unit=unit)
            Pipeline(self._levels, pieces, break_off=self._break_off).run()

    def _cut(self, flat: Tensor, header: Header | None, *, unit: int | None) -> list[Piece]:
        """The pieces; half precision rises as float32, so that it is rounded once, at the top."""
        rising = flat.float() if flat.dtype in HALVES else flat
        count = max(1, -(-rising.nbytes // self._segment_bytes))
        bounds = part_bounds(flat.numel(), count)
        pieces = []
        for index in range(count):
            low, high = bounds[index], bounds[index + 1]
            part = rising[low:high]
            result = part if rising is flat else flat[low:high]
            key = None if unit is None else (unit, index)
            pieces.append(Piece(part, result, header if index == count - 1 else None, key))
        return pieces

    def _pass_on(self, host: Tensor, root: int) -> None:
        """From the root up to the top, each group on the way getting it as a whole; then down."""
        flat = host.detach().view(-1)
        for level in self._levels:
            if root in level.seat.via:
                with naming(level.seat):
                    level.group.broadcast(flat, level.seat.via[root])
        for level in reversed(self._levels):
            if root not in level.seat.via:
                with naming(level.seat):
                    level.spread(flat, None)

    def _shared_with(self, peer: int) -> tuple[Group, int]:
        """A group that the peer is in, too, and its place there."""
        for level in self._levels:
            if peer in level.seat.speakers:
                return level.group, level.seat.speakers.index(peer)
        return self._pairs.with_peer(peer)

    def _measured(self) -> Iterator[HopStats]:
        for level in self._levels:
            yield from _of_ranks(level.group.hops(), level.seat.speakers)
        for peer, group in self._pairs.items():
            yield from _of_ranks(group.hops(), tuple(sorted((self.rank, peer))))

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise UsageError(
                f"member {peer}: the other members of this group of {self.size} are all but "
                f"{self.rank}"
            )

    def _break_off(self) -> None:
        for level in self._levels:
            level.group.abort()
        self._pairs.abort()

    def _do(self, operation: Callable[[], T]) -> T:
        """Runs an operation; any failure ends all groups of this member."""
        if self._failure:
            raise ExchangeError(f"the group {self.key} cannot be used any more: {self._failure}")
        try:
            return operation()
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            self.close()
            if self._is_aborted.is_set() and not isinstance(error, ExchangeAborted):
                raise ExchangeAborted("the exchange was broken off by this process") from error
            raise


def _of_ranks(hops: list[HopStats], ranks: tuple[int, ...]) -> Iterator[HopStats]:
    """What one group measured, by rank in the tree."""
    for hop in hops:
        yield msgspec.structs.replace(hop, peer=ranks[hop.peer])
