# SPDX-License-Identifier: Apache-2.0
"""A paced worker that can tell what elasticity costs it, or do without.

The environment says which. `timed`: the CPU time of what every step does only to survive faults is
added up. `off`: steps keep no snapshot and tell nobody that they were made, so that nothing could be
recovered; heartbeats stay, as the coordinator would put the worker out.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from gangline.protocol.messages import Measured
from gangline.worker.groups.snapshot import Snapshot
from gangline.worker.line.client import ControlClient
from gangline.worker.loop import batches
from paced_worker import PART_VARIABLE, Part, Worker
from teams import serve

if TYPE_CHECKING:
    from collections.abc import Callable

MODE_VARIABLE = "GANGLINE_BENCH_ELASTIC"
MODES = ("on", "timed", "off")


class CostWorker(Worker):
    """Answers `{"do": "calls"}` with the CPU seconds of each timed call since the last time."""

    def __init__(self, part: Part, *, used_s: dict[str, float]) -> None:
        super().__init__(part)
        self._used_s = used_s

    def answer(self, request: dict[str, Any]) -> object:
        """Does what is asked."""
        if request["do"] != "calls":
            return super().answer(request)
        taken = dict(self._used_s)
        self._used_s.update(dict.fromkeys(self._used_s, 0.0))
        return taken


def timed(used_s: dict[str, float], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, whose CPU time is added up."""
    used_s[name] = 0.0

    def run(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            used_s[name] += time.thread_time() - began

    return run


def time_calls() -> dict[str, float]:
    """Times what every step does only to survive faults."""
    used_s: dict[str, float] = {}
    Snapshot.take = timed(used_s, "snapshot", Snapshot.take)  # type: ignore[method-assign]
    batches.tell_step = timed(used_s, "telling", batches.tell_step)
    return used_s


def switch_off() -> None:
    """Steps keep nothing and tell nobody."""
    send = ControlClient.send

    def send_others(client: ControlClient, message: Any) -> None:
        if not isinstance(message, Measured):
            send(client, message)

    ControlClient.send = send_others  # type: ignore[method-assign]
    Snapshot.take = lambda snapshot: None  # type: ignore[method-assign]
    batches.tell_step = lambda *args, **kwargs: None


def main() -> None:
    """Serves until the benchmark closes the input."""
    torch.set_num_threads(1)
    mode = os.environ[MODE_VARIABLE]
    used_s = time_calls() if mode == "timed" else {}
    if mode == "off":
        switch_off()
    part = msgspec.json.decode(os.environ[PART_VARIABLE], type=Part)
    serve(CostWorker(part, used_s=used_s).answer)


if __name__ == "__main__":
    main()
