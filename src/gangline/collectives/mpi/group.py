# SPDX-License-Identifier: Apache-2.0
"""A group over a communicator of MPI.

All calls are non-blocking ones of MPI that are waited for, so that another thread can break them off.
Large tensors travel in pieces, all of which are under way at once. A sum is made of parts, each of
which one member adds up: so all members have the same bits, whatever order the library adds in.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gangline.collectives.protocol import part_bounds
from gangline.spec.errors import ExchangeAborted, ExchangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.collectives.protocol import Header
    from gangline.spec.exchange.hop import HopStats

_PIECE_BYTES = 4 << 20
_YIELDS = 200
"""So often the processor is offered to others before the thread sleeps between two looks."""
_SLEEP_S = 0.0001
_SHORT = (torch.float16, torch.bfloat16)
"""What MPI cannot add: it travels as float32, and is rounded once."""
_LEAKED: list[Any] = []
"""Buffers of exchanges that were broken off: MPI may still write to them."""


class MpiGroup:
    """Members that are ranks of one communicator."""

    transport = "mpi"

    def __init__(self, mpi: Any, communicator: Any, *, timeout_s: float) -> None:
        self._mpi = mpi
        self._communicator = communicator
        self._timeout_s = timeout_s
        self._aborted = False
        self.rank: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()
        communicator.Set_errhandler(mpi.ERRORS_RETURN)

    def all_reduce(self, tensor: Tensor, header: Header | None = None) -> None:
        with self._errors("all-reduce"):
            flat = _in_host(tensor)
            extra = []
            if header is not None:
                highest = np.empty_like(header)
                maximum = self._mpi.MAX
                extra.append(self._communicator.Iallreduce(header.copy(), highest, op=maximum))
            self._sum(flat, extra)
            _put_back(tensor, flat)
            if header is not None:
                header[:] = highest

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        whole = tensor.flatten()
        self.all_reduce(whole)
        bounds = part_bounds(whole.numel(), self.size)
        return whole[bounds[self.rank] : bounds[self.rank + 1]]

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        own = _bytes_of(tensor.detach().cpu().contiguous())
        rows = np.empty((self.size, own.size), dtype=np.uint8)
        with self._errors("all-gather"):
            self._wait([self._communicator.Iallgather(own, rows)], own, rows)
        return [_tensor_of(row, like=tensor) for row in rows]

    def broadcast(self, tensor: Tensor, root: int) -> None:
        with self._errors("broadcast"):
            buffer = tensor.detach().cpu().contiguous()
            view = _bytes_of(buffer)
            self._wait([self._communicator.Ibcast(view, root=root)], buffer)
            if self.rank != root:
                tensor.copy_(buffer.view_as(tensor))

    def send(self, tensor: Tensor, to: int) -> None:
        with self._errors("send"):
            buffer = tensor.detach().cpu().contiguous()
            self._wait([self._communicator.Isend(_bytes_of(buffer), dest=to)], buffer)

    def receive(self, tensor: Tensor, source: int) -> None:
        with self._errors("receive"):
            buffer = torch.empty_like(tensor, device="cpu", memory_format=torch.contiguous_format)
            self._wait([self._communicator.Irecv(_bytes_of(buffer), source=source)], buffer)
            tensor.copy_(buffer)

    def hops(self) -> list[HopStats]:
        return []

    def abort(self) -> None:
        self._aborted = True

    def close(self) -> None:
        self._aborted = True

    def _sum(self, flat: Tensor, extra: list[Any]) -> None:
        """Sums in place; `extra` is what else is waited for."""
        whole = flat.numpy()
        step = max(1, _PIECE_BYTES // whole.itemsize)
        pieces = [whole[start : start + step] for start in range(0, len(whole), step)]
        parts, counts = [], []
        for piece in pieces:
            bounds = part_bounds(len(piece), self.size)
            sizes = [end - start for start, end in pairwise(bounds)]
            part = np.empty(sizes[self.rank], dtype=piece.dtype)
            extra.append(self._communicator.Ireduce_scatter(piece, part, sizes, op=self._mpi.SUM))
            parts.append(part)
            counts.append(sizes)
        self._wait(extra, whole, parts)
        gathered = [
            self._communicator.Iallgatherv(part, (piece, sizes))
            for part, piece, sizes in zip(parts, pieces, counts, strict=True)
        ]
        self._wait(gathered, whole, parts)

    def _wait(self, requests: list[Any], *buffers: Any) -> None:
        """Until all are done. Raises, and keeps their buffers for ever, when they are broken off."""
        deadline = time.monotonic() + self._timeout_s
        looks = 0
        try:
            while not self._mpi.Request.Testall(requests):
                if self._aborted:
                    raise ExchangeAborted("mpi: the exchange was broken off")
                if time.monotonic() > deadline:
                    raise ExchangeError(f"mpi: nothing came for {self._timeout_s:g} s")
                looks += 1
                if looks < _YIELDS:
                    os.sched_yield()
                else:
                    time.sleep(_SLEEP_S)
        except BaseException:
            _LEAKED.append((requests, buffers))
            raise

    @contextmanager
    def _errors(self, operation: str) -> Iterator[None]:
        if self._aborted:
            raise ExchangeAborted(f"mpi {operation}: the group was closed")
        try:
            yield
        except self._mpi.Exception as error:
            self._revoke()
            raise ExchangeError(f"mpi {operation} failed: {error}") from error
        except ExchangeError:
            self._revoke()
            raise

    def _revoke(self) -> None:
        """Has the others' calls end, too, where the library can do that."""
        self._aborted = True
        try:
            self._communicator.Revoke()
        except (AttributeError, NotImplementedError, self._mpi.Exception):
            return  # they notice it by the coordinator


def _in_host(tensor: Tensor) -> Tensor:
    """The tensor as a flat one that MPI can add up in place: itself, or a copy."""
    flat = tensor.detach().flatten().cpu()
    return flat.float() if flat.dtype in _SHORT else flat


def _put_back(tensor: Tensor, flat: Tensor) -> None:
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view(tensor.shape))


def _bytes_of(tensor: Tensor) -> Any:
    """The memory of a contiguous tensor, whatever its type."""
    return tensor.flatten().view(torch.uint8).numpy()


def _tensor_of(row: Any, *, like: Tensor) -> Tensor:
    found = torch.from_numpy(row).view(like.dtype).view(like.shape)
    return found.to(like.device)
