# SPDX-License-Identifier: Apache-2.0
"""How busy this process and its machine are, about once per second, by a thread of its own."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psutil
import torch

from gangline.spec.event import Utilisation

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.eventlog import EventSink

INTERVAL_S = 1.0


class _Counters:
    """What only ever grows, at one moment."""

    def __init__(self, process: psutil.Process) -> None:
        own, node, network = process.cpu_times(), psutil.cpu_times(), psutil.net_io_counters()
        self.at_s = time.monotonic()
        self.own_s = own.user + own.system
        idle_s = node.idle + getattr(node, "iowait", 0.0)
        # A guest's time is in the user's already.
        self.node_s = sum(node) - getattr(node, "guest", 0.0) - getattr(node, "guest_nice", 0.0)
        self.busy_s = self.node_s - idle_s
        # There may be no interface at all.
        self.sent = 0 if network is None else network.bytes_sent
        self.received = 0 if network is None else network.bytes_recv


class Sampler:
    """Compares what the system counts now with what it counted the last time."""

    def __init__(self, worker: int, clock: Callable[[], float] = time.time) -> None:
        self._worker = worker
        self._clock = clock
        self._process = psutil.Process()
        self._before = _Counters(self._process)
        self._has_gpu_figures = True

    def sample(self) -> Utilisation:
        """What was used since the last sample."""
        before, counters = self._before, _Counters(self._process)
        self._before = counters
        elapsed_s = max(1e-3, counters.at_s - before.at_s)
        node_s = counters.node_s - before.node_s
        with self._process.oneshot():
            memory, threads = self._process.memory_info().rss, self._process.num_threads()
        gpu, gpu_memory = self._of_gpu()
        return Utilisation(
            t=self._clock(),
            worker=self._worker,
            cpu=round(max(0.0, counters.own_s - before.own_s) / elapsed_s, 3),
            node_cpu=round(_part(counters.busy_s - before.busy_s, node_s), 3),
            memory_bytes=memory,
            node_memory=round(psutil.virtual_memory().percent / 100, 3),
            threads=threads,
            sent_bytes=max(0, counters.sent - before.sent),
            received_bytes=max(0, counters.received - before.received),
            gpu=gpu,
            gpu_memory_bytes=gpu_memory,
        )

    def _of_gpu(self) -> tuple[float | None, int | None]:
        """Only where the script uses a GPU: to ask would set one up, which takes memory."""
        is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if not is_used:
            return None, None
        device = torch.cuda.current_device()
        held = torch.cuda.memory_reserved(device)
        if not self._has_gpu_figures:
            return None, held
        try:
            return torch.cuda.utilization(device) / 100, held
        except Exception:  # the bindings are not installed, or the driver does not tell
            self._has_gpu_figures = False
            return None, held


def _part(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


class UtilisationThread:
    """Writes a sample to the log every second, until it is closed. Never raises in the training."""

    def __init__(self, worker: int, events: EventSink, *, interval_s: float = INTERVAL_S) -> None:
        self._worker = worker
        self._events = events
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gangline-utilisation", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            sampler = Sampler(self._worker)
            while not self._ending.wait(self._interval_s):
                self._events.write(sampler.sample())
        except (psutil.Error, OSError):
            return  # a system that tells nothing (no /proc): there is nothing to write

    def close(self) -> None:
        """Ends the thread."""
        self._ending.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
