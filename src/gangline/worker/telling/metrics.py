# SPDX-License-Identifier: Apache-2.0
"""What the `kqv` allocations want to know of a worker: operations per second, memory, latency."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil
from torch.utils.flop_counter import FlopCounterMode

from gangline.protocol.messages import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERVAL_S = 0.5


class MetricsProbe:
    """Counts the operations of the first step, and turns every step's time into a rate."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counter: FlopCounterMode | None = None
        self._operations_per_sample: float | None = None
        self._process = psutil.Process()
        self._sent_s = float("-inf")

    def begin(self) -> None:
        """A batch was handed out: the first one's operations are counted, which slows it down."""
        if self._operations_per_sample is None and self._counter is None:
            self._counter = FlopCounterMode(display=False)
            self._counter.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """The backward pass is over."""
        if self._counter is not None and self._operations_per_sample is None:
            self._counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._operations_per_sample = 0.0

    def measure(self, *, samples: int, compute_s: float, latency_s: float) -> Metrics | None:
        """The metrics after a step, a few times per second; None in between."""
        if self._counter is not None:
            flops = self._counter.get_total_flops()
            # A model of unknown operations counts samples: only ratios matter.
            self._operations_per_sample = flops / max(samples, 1) or 1.0
            self._counter = None
            return None
        now = self._clock()
        if samples == 0 or compute_s <= 0 or now - self._sent_s < _INTERVAL_S:
            return None
        self._sent_s = now
        assert self._operations_per_sample is not None
        return Metrics(
            operations_per_s=self._operations_per_sample * samples / compute_s,
            memory_bytes=float(self._process.memory_info().rss),
            latency_s=latency_s,
        )
