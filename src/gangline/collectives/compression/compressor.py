# SPDX-License-Identifier: Apache-2.0
"""Sums of tensors over the members of any group, compressed on the way.

With error feedback, what a message leaves out is kept and added to the next tensor of the same key:

    p = x + e      send C(p)      e = p − C(p)

Members get bit-equal results. A tensor for which compression would not send fewer bytes is sent as it
is. Where somebody's tensor is not finite, nobody's result is, in any element, and what was kept stays
as it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from gangline.collectives.compression import powersgd
from gangline.collectives.compression.codecs import HALVES, codec_of
from gangline.collectives.compression.gathering import Message, gather
from gangline.collectives.compression.on_device import device_codec_of
from gangline.spec.errors import UsageError
from gangline.spec.exchange.compression import POWERSGD
from gangline.spec.exchange.compression_format import (
    ELEMENT_BYTES,
    is_shorter,
    ring_bytes,
    sent_bytes,
    sums_halves,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import Tensor

    from gangline.collectives.compression.codec import Codec, Floats
    from gangline.collectives.protocol import Group, Header
    from gangline.spec.exchange.compression import Compression


class Traffic(msgspec.Struct):
    """What one member has sent, and what it would have sent without compression."""

    exchanges: int = 0
    dense_bytes: int = 0
    """By a ring that sums float32."""
    sent_bytes: int = 0

    def add(self, dense_bytes: float, sent_bytes: float) -> None:
        """Counts one more exchange."""
        self.exchanges += 1
        self.dense_bytes += round(dense_bytes)
        self.sent_bytes += round(sent_bytes)


@dataclass(slots=True, eq=False)
class _Memory:
    """What is kept of the tensors of one key."""

    length: int
    residual: Tensor | None = None
    """What was left out of the last message: this member's own."""
    right: Floats | None = None
    """PowerSGD's Q: the same on all members of the group."""
    before: tuple[Tensor | None, Floats | None] = (None, None)
    """Both as they were before the last exchange."""


class Compressor:
    """One member's end of compressed exchanges; one thread at a time."""

    def __init__(self, compression: Compression, *, seed: int = 0) -> None:
        """`seed` is the same on all members: they draw from it by rank."""
        self.compression = compression
        self.traffic = Traffic()
        self._seed = seed
        self._memories: dict[Hashable, _Memory] = {}
        self._group: Group | None = None
        self._num_groups = 0
        self._codec: Codec | None = None

    def all_reduce(
        self,
        group: Group,
        tensor: Tensor,
        header: Header | None = None,
        *,
        key: Hashable = 0,
        is_coded: bool = True,
    ) -> None:
        """Replaces the tensor by the sum over all members, and the header by the maximum.

        The key names what the tensor is, such as a unit of the gradient: tensors of one key follow
        each other, are equally long, and share what is left out. `is_coded` says, alike on all
        members, whether it is compressed where that is shorter.
        """
        self._check(tensor)
        if group is not self._group:
            self._enter(group)
        length = tensor.numel()
        memory = self._memory(key, length)
        memory.before = memory.residual, memory.right
        dense = sent = ring_bytes(ELEMENT_BYTES * length, num_members=group.size)
        if is_coded and is_shorter(self.compression, length, num_members=group.size):
            where = tensor.device if self.runs_on(tensor.device) else torch.device("cpu")
            flat = tensor.detach().reshape(-1).to(where, torch.float32)
            total, sent = self._sum(group, flat, header, memory)
            tensor.detach().copy_(total.view(tensor.shape))
        else:
            if memory.residual is not None:  # it was worth while before, as in a smaller group
                tensor.detach().add_(memory.residual.to(tensor).view(tensor.shape))
                memory.residual = None
            group.all_reduce(tensor, header)
        self.traffic.add(dense, sent)

    def runs_on(self, device: torch.device) -> bool:
        """Whether tensors on a device are encoded and decoded there."""
        return device.type == "cpu" or device_codec_of(self.compression, device) is not None

    def mean(self, group: Group, tensor: Tensor, *, weight: float, key: Hashable = 0) -> float:
        """Replaces the tensor by the mean of all members', weighted; returns the sum of weights.

        A member whose weight is 0 still takes part. Where all are 0, all tensors become 0. When it
        fails, the tensor is left undefined.
        """
        self._check(tensor)
        if not 0 <= weight < math.inf:
            raise UsageError(f"a weight is finite and 0 or more, not {weight}")
        given = group.all_gather(torch.tensor([weight], dtype=torch.float64))
        total = math.fsum(float(one) for one in given)
        if weight == 0:  # what is not finite must not count, and 0 * inf is not 0
            tensor.detach().zero_()
        else:
            tensor.detach().mul_(weight / total)
        self.all_reduce(group, tensor, key=key)
        return total

    def undo(self, key: Hashable = 0) -> None:
        """What the last exchange of a key brought was not used: nothing of it counts as sent."""
        memory = self._memories.get(key)
        if memory is not None:
            memory.residual, memory.right = memory.before

    def forget(self) -> None:
        """Drops what was kept, as after the tensors were replaced by others."""
        self._memories.clear()

    def _check(self, tensor: Tensor) -> None:
        if not tensor.is_floating_point():
            raise UsageError(
                f"compression {self.compression} is for floating-point tensors, not {tensor.dtype}; "
                "sum whole numbers without it"
            )

    def _enter(self, group: Group) -> None:
        """Another group: what its members have alike begins anew; what is this one's own stays."""
        self._group = group
        self._num_groups += 1
        for memory in self._memories.values():
            memory.right = None
        if not self.compression.is_none and self.compression.kind != POWERSGD:
            generator = np.random.default_rng((self._seed, group.rank, self._num_groups))
            self._codec = codec_of(self.compression, generator=generator)

    def _memory(self, key: Hashable, length: int) -> _Memory:
        memory = self._memories.setdefault(key, _Memory(length))
        if memory.length != length:
            raise UsageError(
                f"a tensor of {length} elements follows one of {memory.length} under the key "
                f"{key!r}; use another key, or forget() first"
            )
        return memory

    # --- one exchange ----------------------------------------------------------------------------

    def _sum(
        self, group: Group, flat: Tensor, header: Header | None, memory: _Memory
    ) -> tuple[Tensor, float]:
        """The sum, and how many bytes this member sent for it."""
        if self.compression.kind == POWERSGD:
            return self._multiply(group, flat, header, memory)
        if sums_halves(self.compression, group.size):
            narrow = flat.to(HALVES[self.compression.kind])
            group.all_reduce(narrow, header)
            return narrow, self._usual_bytes(group, flat)
        return self._gather(group, flat, header, memory)

    def _gather(
        self, group: Group, flat: Tensor, header: Header | None, memory: _Memory
    ) -> tuple[Tensor, float]:
        codec = self._codec if flat.is_cpu else device_codec_of(self.compression, flat.device)
        assert codec is not None
        wanted = flat if memory.residual is None else flat + memory.residual.to(flat.device)
        is_finite = bool(torch.isfinite(wanted).all())
        fixed = codec.message_bytes(flat.numel())
        body = codec.encode(wanted) if is_finite else np.zeros(fixed or 0, dtype=np.uint8)
        message = Message(self.compression.kind, flat.numel(), body, header, is_finite)
        messages, sent = gather(group, message, is_fixed=fixed is not None)
        if not all(one.is_finite for one in messages):
            return torch.full_like(flat, math.nan), sent
        total, own = torch.zeros_like(flat), wanted
        for sender, one in enumerate(messages):  # in rank order: everybody rounds alike
            decoded = codec.decode(one.body, flat.numel())
            total += decoded
            own = decoded if sender == group.rank else own
        if codec.keeps_residual:
            memory.residual = wanted - own
        return total, sent

    def _multiply(
        self, group: Group, flat: Tensor, header: Header | None, memory: _Memory
    ) -> tuple[Tensor, float]:
        rank, length = int(self.compression.number), flat.numel()
        fresh = powersgd.first_right(rank, length, seed=self._seed)
        wanted = flat if memory.residual is None else flat + memory.residual
        right = fresh if memory.right is None else memory.right
        product = powersgd.exchange(group, wanted, header, right=right, fresh=fresh)
        sent = self._usual_bytes(group, flat)
        if product is None:
            return torch.full_like(flat, math.nan), sent
        memory.right = product.right
        memory.residual = wanted - product.total / group.size
        return product.total, sent

    def _usual_bytes(self, group: Group, flat: Tensor) -> float:
        return sent_bytes(self.compression, flat.numel(), num_members=group.size)
