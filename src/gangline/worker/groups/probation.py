# SPDX-License-Identifier: Apache-2.0
"""A worker that was put out waits for a group, and shows meanwhile how fast it is.

It makes no steps, so it times a small computation of its own, over and over: always the same one, which
it timed first when it was prepared. The ratio says how much slower it is than it was then. The best of
a few tries counts, so that a neighbour which takes the processor for a moment does not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from gangline.protocol.messages import Shown
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from gangline.protocol.messages import FetchState
    from gangline.spec.view import View
    from gangline.worker.faults import Faults
    from gangline.worker.line.client import ControlClient

VIEW_WAIT_S = 600.0
"""How long a worker that lost its group waits for the coordinator, which may be away itself."""
SHOW_S = 0.25
"""How often a worker that was put out shows how fast it is."""
_TRIES = 3
_SIZE = 192
_ROUNDS = 4


class Probation:
    """The computation, and what it took at first."""

    def __init__(self, faults: Faults, models: Iterable[nn.Module]) -> None:
        self._faults = faults
        parameters = (parameter for model in models for parameter in model.parameters())
        device = next((one.device for one in parameters), torch.device("cpu"))
        self._matrix = torch.full((_SIZE, _SIZE), 1.0 / _SIZE, device=device)
        self._time_once()  # memory is allocated, kernels are chosen
        self._first_s = min(self._time_once() for _ in range(_TRIES))

    def await_group(
        self, client: ControlClient, last: int, *, worker: int
    ) -> View | FetchState | None:
        """Waits for a view of a newer group than `last` with this worker in it; None: it may go.

        Who was put out may wait for long, as long as the coordinator is there. Meanwhile a member may
        have the state with which an epoch begins for it.
        """
        deadline_s = time.monotonic() + VIEW_WAIT_S
        while True:
            found = client.poll_group(last, worker=worker, timeout_s=SHOW_S)
            if found is not None:
                return found[0]
            if client.is_out(worker, last=last):
                client.send(Shown(slowdown=self.measure()))
                deadline_s = time.monotonic() + VIEW_WAIT_S
            elif time.monotonic() > deadline_s:
                raise LaunchError(
                    f"waited {VIEW_WAIT_S:.0f} s for a view with this worker in it, in vain: look "
                    "whether all workers and the coordinator are running (`gangline status`)"
                )

    def measure(self) -> float:
        """How many times as long as at first the computation takes."""
        slowness = self._faults.pass_step()
        return min(self._time_once() for _ in range(_TRIES)) * slowness / self._first_s

    def _time_once(self) -> float:
        started_s = time.perf_counter()
        product = self._matrix
        for _ in range(_ROUNDS):
            product = product @ self._matrix
        float(product[0, 0])  # waits for the device
        return max(time.perf_counter() - started_s, 1e-9)
