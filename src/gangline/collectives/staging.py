# SPDX-License-Identifier: Apache-2.0
"""Brings tensors that are not contiguous host memory there, and the result back.

For GPUs there are two buffers of pinned memory, used in turn. While one is exchanged, what is exchanged
next comes into the other by a queue of its own, and results go back without being waited for: whatever
the calling thread queues next comes behind them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class _Buffer:
    """Pinned memory, and when its last user is done with it."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self.returned: torch.cuda.Event | None = None
        """When what was in it is back on the device."""

    def like(self, tensor: Tensor) -> Tensor:
        """Its memory, in the form of a tensor."""
        if self._memory is None or self._memory.numel() < tensor.nbytes:
            self._memory = _pinned(max(tensor.nbytes, 1))
        return self._memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)


class _Coming(NamedTuple):
    """A tensor that is on its way to host memory."""

    tensor: Tensor
    buffer: _Buffer
    host: Tensor
    arrived: torch.cuda.Event


class Staging:
    """One thread's way between devices and host memory."""

    def __init__(self) -> None:
        self._buffers = _Buffer(), _Buffer()
        self._coming: list[_Coming] = []
        self._present = self._buffers[0]
        """What the last tensor that was asked for is in."""
        self._queues: dict[torch.device, torch.cuda.Stream] = {}

    def bring(self, tensor: Tensor, ready: torch.cuda.Event) -> None:
        """Begins to copy what `host_of` will be asked for soon; its device has computed it at `ready`.

        At most two tensors are on their way, which are asked for in this order.
        """
        is_known = any(one.tensor is tensor for one in self._coming)
        if not (_is_host(tensor) or is_known or len(self._coming) == len(self._buffers)):
            self._coming.append(self._copy(tensor, ready))

    def forget(self) -> None:
        """What is on its way will not be asked for."""
        self._coming.clear()

    def host_of(self, tensor: Tensor) -> Tensor:
        """The tensor itself where it is contiguous host memory, else a copy that is."""
        if _is_host(tensor):
            return tensor if tensor.is_contiguous() else tensor.detach().contiguous()
        found = next((one for one in self._coming if one.tensor is tensor), None)
        if found is None:
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(torch.cuda.current_stream(tensor.device))
            found = self._copy(tensor, ready)
        else:
            self._coming.remove(found)
        self._present = found.buffer
        found.arrived.synchronize()
        return found.host

    def write_back(self, host: Tensor, tensor: Tensor) -> None:
        """Copies the result from where `host_of` put it."""
        if host is tensor:
            return
        tensor.detach().copy_(host, non_blocking=True)
        if not _is_host(tensor):
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(tensor.device))
            self._present.returned = event

    def _copy(self, tensor: Tensor, ready: torch.cuda.Event) -> _Coming:
        """Copies into a buffer that nothing is coming into, beside what this thread has queued."""
        taken = [one.buffer for one in self._coming]
        free = [one for one in self._buffers if one not in taken]
        # The other one than the last: what was in that may still be on its way back.
        buffer = next((one for one in free if one is not self._present), None)
        buffer = buffer or (free[0] if free else _Buffer())
        queue = self._queue(tensor.device)
        queue.wait_event(ready)
        if buffer.returned is not None:
            queue.wait_event(buffer.returned)
        host = buffer.like(tensor)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(queue):
            host.copy_(tensor.detach(), non_blocking=True)
            arrived.record(queue)
        return _Coming(tensor, buffer, host, arrived)

    def _queue(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._queues:
            self._queues[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._queues[device]


def _is_host(tensor: Tensor) -> bool:
    return tensor.is_cpu


def _pinned(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
