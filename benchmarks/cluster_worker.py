# SPDX-License-Identifier: Apache-2.0
"""One node of an emulated cluster: enters one network after another, and trains there when asked to."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import msgspec
import torch
import torch.nn.functional as F

from gangline.emulation.pacing import pace
from paced_worker import PART_VARIABLE, Part, Task, Worker
from teams import serve

_CLONE_NEWNET = 0x40000000
_WARM_UP_STEPS = 2


class ClusterWorker(Worker):
    """Takes part where it is asked to; otherwise it sleeps."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._takes_part = False

    def answer(self, request: dict[str, Any]) -> object:
        """Does what is asked."""
        rank = self._part.rank
        match request["do"]:
            case "enter":
                if rank < len(request["namespaces"]):
                    _enter(request["namespaces"][rank], interface=request["interface"])
                    self._set_speed(request["speeds"][rank])
                return None
            case "alone":
                if rank >= len(request["samples"]):
                    return None
                return self._alone(request["model"], request["samples"][rank], request["seconds"])
            case "join":
                task = msgspec.convert(request["task"], Task)
                self._takes_part = rank < task.workers
                if task.kind == "gangline":
                    self._takes_part = rank < len(task.launches) and bool(task.launches[rank])
        return super().answer(request) if self._takes_part else None

    def _alone(self, name: str, sizes: list[int], seconds: float) -> dict[int, list[float]]:
        """Whole steps without an exchange, for about so long: seconds of each, by samples."""
        model, optimizer = self._build(name)
        pacer = pace(model, self._speed)
        times: dict[int, list[float]] = {size: [] for size in sizes}
        deadline = time.perf_counter() + seconds
        count = 0
        while time.perf_counter() < deadline or count < 2 + _WARM_UP_STEPS:
            for size in sizes:
                began = time.perf_counter()
                images, labels = self._data.__getitems__(range(size))
                pacer.begin(size)
                optimizer.zero_grad()
                loss: Any = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                if count >= _WARM_UP_STEPS:
                    times[size].append(time.perf_counter() - began)
            count += 1
        pacer.remove()
        return times


def _enter(namespace: str, *, interface: str) -> None:
    """The threads that this one starts from now on are in the network, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network {namespace}")
    finally:
        os.close(descriptor)
    os.environ["GLOO_SOCKET_IFNAME"] = interface


def main() -> None:
    """Serves until the benchmark closes the input."""
    torch.set_num_threads(1)
    serve(ClusterWorker(msgspec.json.decode(os.environ[PART_VARIABLE], type=Part)).answer)


if __name__ == "__main__":
    main()
