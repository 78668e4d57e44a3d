# SPDX-License-Identifier: Apache-2.0
"""The protocol that every transport implements: a group of members that exchange tensors.

A group is blocking and is driven by one thread at a time: the runtime has one communication thread
per worker, which makes the calls in the same order on every member. Only `abort` may be called from
another thread; it makes a call in progress raise `ExchangeAborted` at once.

A result on a GPU is there for whatever the calling thread queues there next; the GPU itself may still
be at it when the call returns.

Any failure (a dead peer, a broken connection, a time that ran out) raises `ExchangeError` and leaves
the group unusable: the caller closes it and makes a new one. Results are bit-equal on all members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives.compression import Verdict
    from gangline.spec.exchange.hop import HopStats

Header = npt.NDArray[np.int64]
"""A few integers that travel with a tensor and are reduced by maximum, element by element."""


class GroupKey(NamedTuple):
    """What names a group: nobody of another run, view or attempt can take part."""

    run: str
    view: int
    attempt: int
    level: str = "flat"

    def __str__(self) -> str:
        return f"{self.run}/{self.view}/{self.attempt}/{self.level}"


class Group(Protocol):
    """Members that exchange tensors. `rank` is this member's place among `size`."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def transport(self) -> str:
        """The name of what carries the bytes, for people: `gloo`, `wire (shared memory)`, …"""
        ...

    def all_reduce(self, tensor: Tensor, header: Header | None = None) -> None:
        """Replaces the tensor by the sum over all members, and the header by the maximum.

        Either all members give a header of the same length, or none does.
        """
        ...

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        """Sums over all members and returns this member's part of the flat result.

        The parts are those of `part_bounds`; the rest of `tensor` is left undefined.
        """
        ...

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor (all of the same shape and dtype), in rank order."""
        ...

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replaces the tensor by the root's."""
        ...

    def send(self, tensor: Tensor, to: int) -> None:
        """Sends to one member, which must `receive` a tensor of the same shape and dtype."""
        ...

    def receive(self, tensor: Tensor, source: int) -> None:
        """Fills the tensor with what `source` sends."""
        ...

    def hops(self) -> list[HopStats]:
        """What was measured on the way to each peer; empty where the transport does not say."""
        ...

    def abort(self) -> None:
        """Breaks off what is going on, from any thread, at once. The group is unusable afterwards."""
        ...

    def close(self) -> None:
        """Frees all threads, descriptors and memory of the group. May be called twice."""
        ...


def all_reduce_unit(group: Group, tensor: Tensor, header: Header | None, *, unit: int) -> None:
    """Sums a unit of the gradient, by the group's own `all_reduce_unit` where it has one.

    Such a group treats gradients otherwise than other tensors: it may compress them.
    """
    of_units: Callable[..., None] | None = getattr(group, "all_reduce_unit", None)
    if of_units is not None:
        of_units(tensor, header, unit=unit)
    else:
        group.all_reduce(tensor, header)


def bring(group: Group, tensor: Tensor, ready: torch.cuda.Event) -> None:
    """A unit that its device has computed at `ready` is summed soon, after at most one other.

    A group that sums in host memory begins to copy it there, while the other one is exchanged.
    """
    of_units: Callable[[Tensor, torch.cuda.Event], None] | None = getattr(group, "bring", None)
    if of_units is not None:
        of_units(tensor, ready)


def take_verdicts(group: Group) -> list[Verdict]:
    """What a group that compresses has found out about its codecs since it was asked last."""
    of_codecs: Callable[[], list[Verdict]] | None = getattr(group, "take_verdicts", None)
    return [] if of_codecs is None else of_codecs()


def part_bounds(length: int, parts: int) -> list[int]:
    """Cuts `length` elements into contiguous parts as equal as possible: parts + 1 boundaries."""
    base, extra = divmod(length, parts)
    return [index * base + min(index, extra) for index in range(parts + 1)]


def meet(group: Group) -> bool:
    """Nobody goes on before everybody is here."""
    group.all_reduce(torch.zeros(1))
    return True


def gather_bytes(group: Group, payload: bytes) -> list[bytes]:
    """Everybody's payload, in rank order; the payloads may differ in length."""
    lengths = group.all_gather(torch.tensor([len(payload)], dtype=torch.int64))
    longest = max(int(length) for length in lengths)
    padded = torch.zeros(longest, dtype=torch.uint8)
    if payload:
        padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    gathered = group.all_gather(padded)
    return [
        row[: int(length)].numpy().tobytes() for row, length in zip(gathered, lengths, strict=True)
    ]
