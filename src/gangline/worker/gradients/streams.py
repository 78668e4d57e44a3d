# SPDX-License-Identifier: Apache-2.0
"""Order between the threads of a worker whose gradients live on a GPU.

A GPU works through queues (streams), later than the thread that fills them. The communication thread
must not read a gradient before it is computed, and must not wait for what comes after it; and the main
thread must not use a sum before it is there. Its queue waits for it, not the thread, which goes on to
queue the update. On the CPU there is nothing to do.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FIRST = -1
"""A priority above that of other queues."""
_QUEUED = frozenset({"cuda"})
"""The kinds of devices that compute later than they are asked to."""

Mark = torch.cuda.Event | None
"""A point in a device's queue; None on the CPU."""


def is_queued(device: torch.device) -> bool:
    """Whether the device computes later than it is asked to."""
    return device.type in _QUEUED


def mark(device: torch.device, *, is_timed: bool = False) -> Mark:
    """What this thread has queued on the device so far; between two timed marks time can be taken."""
    if not is_queued(device):
        return None
    event = torch.cuda.Event(enable_timing=is_timed)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def wait_for(devices: Iterable[torch.device]) -> None:
    """Waits until the devices have done what this thread has queued on them."""
    for device in devices:
        if is_queued(device):
            torch.cuda.current_stream(device).synchronize()


def pinned(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Host memory that a GPU reads and writes by itself."""
    return torch.empty(length, dtype=dtype, pin_memory=True)


class SideStreams:
    """The communication thread's own queues, so that its copies overlap with the backward pass.

    What it queues is short, and others wait for it: it goes before the rest of the backward pass.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    @contextmanager
    def after(self, ready: Mark, device: torch.device) -> Iterator[None]:
        """What is queued inside comes after `ready`, and beside what the other threads queue."""
        if ready is None:
            yield
            return
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device, priority=_FIRST)  # type: ignore[no-untyped-call]
        stream.wait_event(ready)
        with torch.cuda.stream(stream):
            yield

    def to_host(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Mark]:
        """A copy in host memory, beside what this thread queues next; it is there after the mark."""
        with self.after(mark(tensor.device), tensor.device):
            host = tensor.to("cpu", non_blocking=True)
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
            return host, mark(tensor.device)

    def hand_over(self) -> None:
        """Whatever this thread queues from now on comes after all that was queued inside of `after`."""
        for device, stream in self._streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)
