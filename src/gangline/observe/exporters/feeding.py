# SPDX-License-Identifier: Apache-2.0
"""Gives a running job's figures to other tools, from a thread of the launcher.

It reads the logs that workers write: training has no part in it, and a tool that is slow, or away, is
only behind. A tool that fails is told of in one line, and given no more.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gangline.observe.exporters.exporter import Exporter, Point, Target
from gangline.observe.live.curves import SETTLED_S
from gangline.observe.live.follower import RunFollower
from gangline.observe.live.standing import LiveRun
from gangline.spec.event import Utilisation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gangline.observe.live.standing import Standing
    from gangline.spec.event import Event

INTERVAL_S = 1.0
STANDING_S = 5.0
"""How often our own figures are given."""
CLOSE_S = 20.0
"""How long the end of a run waits for tools that are not done."""
_MAX_REASON = 300


class Figures:
    """Turns events into points."""

    def __init__(self) -> None:
        self._run = LiveRun()
        self._utilisation: dict[int, Utilisation] = {}
        self._given_t = float("-inf")
        self._held: list[Point] = []
        """Our own figures, until what scripts logged before was given: tools like steps in order."""

    def points_of(self, events: Sequence[Event], *, is_final: bool = False) -> list[Point]:
        """What is new to tell, after these events."""
        for event in events:
            self._run.note(event)
            if isinstance(event, Utilisation):
                self._utilisation[event.worker] = event
        points = [
            Point(t=one.t, step=one.step, epoch=one.epoch, values=one.values)
            for one in self._run.curves.take(is_final=is_final)
        ]
        standing = self._run.standing()
        if standing is not None and (standing.t - self._given_t >= STANDING_S or is_final):
            self._given_t = standing.t
            self._held.append(self._own(standing))
        latest_t = float("-inf") if standing is None else standing.t - 2 * SETTLED_S
        points += [one for one in self._held if is_final or one.t <= latest_t]
        self._held = [one for one in self._held if not is_final and one.t > latest_t]
        return sorted(points, key=lambda point: point.step)

    def _own(self, standing: Standing) -> Point:
        values: dict[str, float | None] = {
            "samples_per_second": standing.samples_per_s,
            "step_seconds": standing.step_s,
            "efficiency": standing.efficiency,
            "workers": float(len(standing.members)),
        }
        values |= {f"share/{worker}": float(share) for worker, share in standing.shares.items()}
        for worker, one in self._utilisation.items():
            if worker in standing.shares:
                values |= {f"cpu/{worker}": one.cpu, f"memory_bytes/{worker}": one.memory_bytes}
                values[f"gpu/{worker}"] = one.gpu
        return Point(
            t=standing.t,
            step=standing.step,
            epoch=standing.epoch,
            values={f"gangline/{name}": one for name, one in values.items() if one is not None},
        )


class ExportThread:
    """Feeds the tools until it is closed."""

    def __init__(
        self,
        run_dir: Path,
        targets: Sequence[Target],
        *,
        run: str,
        tell: Callable[[str], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        """`tell` is given one line for each tool that fails."""
        self._follower = RunFollower(run_dir)
        self._figures = Figures()
        self._targets = targets
        self._run = run
        self._tell = tell
        self._interval_s = interval_s
        self._open: dict[str, Exporter] = {}
        self._status = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gangline-export", daemon=True)
        self._thread.start()

    def close(self, status: str, *, wait_s: float = CLOSE_S) -> None:
        """The run has ended: the tools get the rest. Those that take too long are left behind."""
        self._status = status
        self._ending.set()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            names = ", ".join(self._open) or "a tool"
            self._tell(f"{names} did not take the rest of the run within {wait_s:g} s")

    def _work(self) -> None:
        for target in self._targets:
            try:
                self._open[target.name] = target.open(self._run)
            except Exception as error:
                self._tell(_failure(target.name, error))
        while self._open and not self._ending.wait(self._interval_s):
            self._pump()
        self._pump(is_final=True)
        for name, exporter in self._open.items():
            try:
                exporter.close(self._status)
            except Exception as error:
                self._tell(_failure(name, error))

    def _pump(self, *, is_final: bool = False) -> None:
        points = self._figures.points_of(self._follower.take(), is_final=is_final)
        for name, exporter in list(self._open.items()):
            try:
                for point in points:
                    exporter.put(point)
            except Exception as error:
                del self._open[name]
                self._tell(_failure(name, error))


def _failure(name: str, error: Exception) -> str:
    """One line, however much the tool has to say."""
    said = " ".join(str(error).split()) or type(error).__name__
    return f"{name} is given nothing more of this run: {said[:_MAX_REASON]}"
