# SPDX-License-Identifier: Apache-2.0
"""The NCCL transport: torch's collectives between GPUs, behind our protocol; one process per GPU.

Tensors in host memory are moved to the device and back, so that whatever a worker exchanges goes the
same way. NCCL knows no token: use it on hosts you trust.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    PrefixStore,
    ReduceOp,
    Store,
)

from gangline.collectives.protocol import GroupKey, Header, part_bounds
from gangline.spec.errors import ExchangeAborted, ExchangeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gangline.spec.exchange.hop import HopStats

_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_POLL_S = 50e-6


class NcclGroup:
    """Members that own one GPU each, connected by NCCL."""

    transport = "nccl"

    def __init__(
        self, key: GroupKey, *, store: Store, rank: int, size: int, timeout_s: float
    ) -> None:
        check_available()
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._lock = threading.Lock()
        self._is_ended = False
        # Any: torch's type stubs leave out the methods of its process groups.
        self._group: Any = None
        own_store = PrefixStore(str(key), store)
        with self._errors("connect"):
            check_devices(own_store, rank=rank, size=size, device=_name_of(self._device))
            self._group = _make_group(own_store, rank, size, timeout_s)
            # NCCL connects at the first exchange; what is wrong shall be found here.
            self._perform(torch.zeros(1, device=self._device), self._reduction(ReduceOp.SUM))

    def all_reduce(self, tensor: Tensor, header: Header | None = None) -> None:
        with self._errors("all-reduce"):
            self._perform(tensor, self._reduction(ReduceOp.SUM))
            if header is not None:
                self._perform(torch.from_numpy(header), self._reduction(ReduceOp.MAX))

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        flat = tensor.detach().flatten().to(self._device)
        with self._errors("reduce-scatter"):
            self._perform(flat, self._reduction(ReduceOp.SUM))
        bounds = part_bounds(flat.numel(), self.size)
        return flat[bounds[self.rank] : bounds[self.rank + 1]].to(tensor.device)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        own = _as_bytes(tensor.detach().to(self._device).contiguous())
        rows = [torch.empty_like(own) for _ in range(self.size)]
        with self._errors("all-gather"):
            if own.numel():
                self._finish(self._group.allgather([rows], [own]))
        return [row.view(tensor.dtype).view(tensor.shape).to(tensor.device) for row in rows]

    def broadcast(self, tensor: Tensor, root: int) -> None:
        options = BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        with self._errors("broadcast"):
            self._perform(tensor, lambda own: self._group.broadcast([_as_bytes(own)], options))

    def send(self, tensor: Tensor, to: int) -> None:
        own = tensor.detach().to(self._device).contiguous()
        with self._errors("send"):
            if own.numel():
                self._finish(self._group.send([_as_bytes(own)], to, 0))

    def receive(self, tensor: Tensor, source: int) -> None:
        with self._errors("receive"):
            self._perform(tensor, lambda own: self._group.recv([_as_bytes(own)], source, 0))

    def hops(self) -> list[HopStats]:
        return []

    def abort(self) -> None:
        with self._lock:  # NCCL deadlocks where two threads end one group
            is_first, self._is_ended = not self._is_ended, True
        if is_first and self._group is not None:
            self._group.abort()

    def close(self) -> None:
        self.abort()

    def _reduction(self, operation: Any) -> Callable[[Tensor], Any]:
        options = AllreduceOptions()
        options.reduceOp = operation
        return lambda own: self._group.allreduce([own], options)

    def _perform(self, tensor: Tensor, exchange: Callable[[Tensor], Any]) -> None:
        """Exchanges a tensor in place, by way of the device."""
        if not tensor.numel():
            return
        own = tensor.detach().to(self._device).contiguous()
        self._finish(exchange(own))
        if own.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(own)

    def _finish(self, work: Any) -> None:
        """Waits until the device is done, the time has run out, or somebody breaks it off."""
        work.wait()  # queues the waiting on the device, not here
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(self._device))
        deadline = time.monotonic() + self._timeout_s
        while not done.query():  # type: ignore[no-untyped-call]
            if self._is_ended:
                return
            if time.monotonic() > deadline:
                raise ExchangeError(f"no answer from the other members in {self._timeout_s:g} s")
            time.sleep(_POLL_S)

    @contextmanager
    def _errors(self, operation: str) -> Iterator[None]:
        """The device is this thread's; errors end the group; what was broken off is no result."""
        if self._is_ended:
            raise ExchangeAborted(f"nccl {operation}: the group was closed")
        try:
            with torch.cuda.device(self._device):
                yield
        except (RuntimeError, ExchangeError) as error:
            was_aborted = self._is_ended
            self.abort()
            kind = ExchangeAborted if was_aborted else ExchangeError
            raise kind(f"nccl {operation} failed: {error}") from error
        if self._is_ended:
            raise ExchangeAborted(f"nccl {operation}: the group was closed meanwhile")


def check_available() -> None:
    """Refuses a process that has no GPU."""
    if not torch.cuda.is_available():
        raise UsageError(
            "transport 'nccl' needs a CUDA device in every worker, and this one has none "
            "(torch.cuda.is_available() is False): use transport 'wire', which carries the tensors "
            "of CPU and GPU workers alike"
        )
    if not torch.distributed.is_nccl_available():
        raise UsageError(
            f"transport 'nccl': this torch ({torch.__version__}) was built without NCCL; "
            "use transport 'wire'"
        )


def check_devices(store: Store, *, rank: int, size: int, device: str) -> None:
    """Refuses members that share a GPU; everybody gets the same message."""
    store.set(f"device {rank}", device)
    devices = [store.get(f"device {member}").decode() for member in range(size)]
    for member, name in enumerate(devices):
        first = devices.index(name)
        if first != member:
            raise UsageError(
                f"workers {first} and {member} share {name}, and NCCL takes one process per "
                "GPU: give each worker its own (torch.cuda.set_device() before gangline.init()), or "
                "use transport 'wire'"
            )


def _name_of(device: torch.device) -> str:
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} {properties.uuid}"


def _make_group(store: Store, rank: int, size: int, timeout_s: float) -> Any:
    from torch._C._distributed_c10d import ProcessGroupNCCL  # there only where torch has NCCL

    # By default torch ends the process when an exchange fails. Ours goes on with who is left.
    os.environ.setdefault(_ERROR_HANDLING, "0")
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    return ProcessGroupNCCL(store, rank, size, options)


def _as_bytes(tensor: Tensor) -> Tensor:
    """A contiguous tensor as a row of bytes over the same memory: NCCL lacks some of the types."""
    return tensor.view(-1).view(torch.uint8)
