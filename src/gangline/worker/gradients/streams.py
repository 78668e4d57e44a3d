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

Mark = torch.cuda.Event | None
"""A point in a device's queue; None on the CPU."""


def mark(device: torch.device) -> Mark:
    """What this thread has queued on the device so far."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def wait_for(devices: Iterable[torch.device]) -> None:
    """Waits until the devices have done what this thread has queued on them."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


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

    def hand_over(self) -> None:
        """Whatever this thread queues from now on comes after all that was queued inside of `after`."""
        for device, stream in self._streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)
