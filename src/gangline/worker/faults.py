# SPDX-License-Identifier: Apache-2.0
"""Carries out a fault plan inside a worker: it kills, stops, slows or cuts off its own process.

The training calls `reach` at named places of the loop; a fault that waits for such a place and step
happens there. Each happens once, and is in the event log before it happens.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol

from gangline.spec.event import FaultFired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch
    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from gangline.spec.event import Event
    from gangline.spec.faults import Fault

# A stopped process cannot wake itself, and must not run on between asking to be stopped and being so.
_STOP_AND_WAKE = """\
import os, signal, sys, time
os.kill(os.getppid(), signal.SIGSTOP)
time.sleep(float(sys.argv[1]))
os.kill(os.getppid(), signal.SIGCONT)
"""


class Line(Protocol):
    """What can be cut: the line to the coordinator."""

    def cut(self, for_s: float) -> None:
        """Takes the line down, and up again after so many seconds."""
        ...


class Faults:
    """The faults of this worker that have not happened yet, and the slowness that has begun."""

    def __init__(
        self,
        faults: Sequence[Fault] = (),
        *,
        record: Callable[[Event], None] = lambda event: None,
        line: Line | None = None,
    ) -> None:
        self._waiting = [fault for fault in faults if fault.step is not None]
        self._record = record
        self._line = line
        self._step = 0
        self._slow_to = 1.0
        self._slow_until = 0
        self._computing_since_s = 0.0
        self._handles: list[RemovableHandle] = []
        self._timers = [
            threading.Timer(fault.at_s, self._happen, args=(fault,))
            for fault in faults
            if fault.at_s is not None
        ]
        for timer in self._timers:
            timer.daemon = True
            timer.start()

    def watch(self, models: Iterable[nn.Module]) -> None:
        """Lets the place `backward` be in the middle of the backward pass of each model."""
        if all(fault.place != "backward" for fault in self._waiting):
            return
        for model in models:
            trained = [one for one in model.parameters() if one.requires_grad]
            if trained:
                middle = trained[len(trained) // 2]
                self._handles.append(
                    middle.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
                )

    def reach(self, place: str, step: int) -> None:
        """The loop has come to a place of a step: what waits for it happens now."""
        self._step = step
        for fault in [one for one in self._waiting if one.place == place]:
            assert fault.step is not None
            if step >= fault.step and fault in self._waiting:
                self._waiting.remove(fault)
                self._happen(fault)

    def begin(self) -> None:
        """Computing begins: from here on a slow worker is slow."""
        self._computing_since_s = time.perf_counter()

    def wait(self, waited_s: float) -> None:
        """So long nothing was computed: a slow worker is not slower for it."""
        self._computing_since_s += waited_s

    def drag(self) -> None:
        """The local gradient is there: a slow worker takes the time that it would have taken."""
        if self._step >= self._slow_until:
            return
        took_s = time.perf_counter() - self._computing_since_s
        time.sleep(took_s * (1 / self._slow_to - 1))
        self.begin()  # a second backward pass is not slowed by the first one's time

    def pass_step(self) -> float:
        """Something was computed outside of the steps, as if in one: how many times as long it takes.

        A worker that was put out makes no steps; its slowness ends all the same.
        """
        if self._step >= self._slow_until:
            return 1.0
        self._slow_until -= 1
        return 1 / self._slow_to

    def close(self) -> None:
        """Nothing happens any more."""
        self._waiting.clear()
        for timer in self._timers:
            timer.cancel()
        for handle in self._handles:
            handle.remove()

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        self.reach("backward", self._step)

    def _happen(self, fault: Fault) -> None:
        self._record(
            FaultFired(
                t=time.time(),
                worker=fault.worker,
                step=self._step,
                fault=fault.kind,
                where=fault.place,
            )
        )
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "slow":
            assert fault.to is not None
            assert fault.for_steps is not None
            self._slow_to, self._slow_until = fault.to, self._step + fault.for_steps
        elif fault.kind == "hang":
            waker = [sys.executable, "-I", "-S", "-c", _STOP_AND_WAKE, str(fault.for_s)]
            subprocess.run(waker, check=False)
        elif self._line is not None:
            assert fault.for_s is not None
            self._line.cut(fault.for_s)
