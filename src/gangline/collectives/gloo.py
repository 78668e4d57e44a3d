# SPDX-License-Identifier: Apache-2.0
"""The gloo transport: torch's own CPU collectives behind our protocol.

Kept as an alternative and as a yardstick. It cannot be broken off (`abort` only marks the group, a
call in progress ends at its time limit), and it knows no token: use it on hosts you trust.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    ReduceOp,
    Store,
)

from gangline.collectives.protocol import GroupKey, Header, part_bounds
from gangline.spec.errors import ExchangeAborted, ExchangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.spec.exchange.hop import HopStats

_HEADER_RIDES_ALONG_BYTES = 256 * 1024
"""Up to here a float32 tensor is copied together with its header, which saves a second exchange."""
_EXACT_IN_FLOAT32 = 1 << 24
_DIGITS = 3
"""24-bit digits per integer of 64 bits."""


class GlooGroup:
    """Members connected by gloo."""

    transport = "gloo"

    def __init__(
        self, key: GroupKey, *, store: Store, rank: int, size: int, timeout_s: float
    ) -> None:
        self.rank = rank
        self.size = size
        self._aborted = False
        with self._errors("connect"):
            # Any: torch's type stubs leave out the methods of its process groups.
            self._group: Any = ProcessGroupGloo(
                PrefixStore(str(key), store), rank, size, timedelta(seconds=timeout_s)
            )

    def all_reduce(self, tensor: Tensor, header: Header | None = None) -> None:
        with self._errors("all-reduce"):
            if header is None:
                self._sum(tensor)
            elif tensor.dtype == torch.float32 and tensor.nbytes <= _HEADER_RIDES_ALONG_BYTES:
                self._sum_with_header(tensor, header)
            else:
                self._sum(tensor)
                self._reduce(torch.from_numpy(header), ReduceOp.MAX)

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        flat = tensor.flatten()
        with self._errors("reduce-scatter"):
            self._sum(flat)
        bounds = part_bounds(flat.numel(), self.size)
        return flat[bounds[self.rank] : bounds[self.rank + 1]]

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._errors("all-gather"):
            self._group.allgather([gathered], [tensor.contiguous()]).wait()
        return gathered

    def broadcast(self, tensor: Tensor, root: int) -> None:
        options = BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        with self._errors("broadcast"):
            self._group.broadcast([tensor], options).wait()

    def send(self, tensor: Tensor, to: int) -> None:
        with self._errors("send"):
            self._group.send([tensor.contiguous()], to, 0).wait()

    def receive(self, tensor: Tensor, source: int) -> None:
        with self._errors("receive"):
            self._group.recv([tensor], source, 0).wait()

    def hops(self) -> list[HopStats]:
        return []

    def abort(self) -> None:
        self._aborted = True

    def close(self) -> None:
        self._aborted = True

    def _sum(self, tensor: Tensor) -> None:
        self._reduce(tensor, ReduceOp.SUM)

    def _reduce(self, tensor: Tensor, operation: Any) -> None:
        options = AllreduceOptions()
        options.reduceOp = operation
        self._group.allreduce([tensor], options).wait()

    def _sum_with_header(self, tensor: Tensor, header: Header) -> None:
        """One exchange for both: each member puts its header into a row of its own.

        Adding zeros to a row leaves it as it is, so the sum brings everybody's header to everybody;
        the integers travel as 24-bit digits, which float32 holds exactly.
        """
        rows = torch.zeros((self.size, len(header), _DIGITS), dtype=torch.float32)
        rest = torch.from_numpy(header)
        for digit in range(_DIGITS - 1):
            rows[self.rank, :, digit] = (rest % _EXACT_IN_FLOAT32).float()
            rest = rest.div(_EXACT_IN_FLOAT32, rounding_mode="floor")
        rows[self.rank, :, -1] = rest.float()
        both = torch.cat([tensor.flatten(), rows.flatten().to(tensor.device)])
        self._sum(both)
        tensor.copy_(both[: tensor.numel()].view_as(tensor))
        digits = both[tensor.numel() :].cpu().view_as(rows).long()
        values = digits[..., -1]
        for digit in reversed(range(_DIGITS - 1)):
            values = values * _EXACT_IN_FLOAT32 + digits[..., digit]
        header[:] = values.amax(dim=0).numpy()

    @contextmanager
    def _errors(self, operation: str) -> Iterator[None]:
        if self._aborted:
            raise ExchangeAborted(f"gloo {operation}: the group was closed")
        try:
            yield
        except RuntimeError as error:
            self._aborted = True
            raise ExchangeError(f"gloo {operation} failed: {error}") from error
