# SPDX-License-Identifier: Apache-2.0
"""What `gangline run` shows while a job runs: one line of progress, and the workers' output.

Both are read from files that the workers write, so a worker never waits for the screen.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.text import Text

from gangline.eventlog import log_path, tail_events
from gangline.spec.errors import LogError
from gangline.spec.event import StepDone, ViewAdopted
from gangline.spec.plainfile import open_plain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

    from gangline.engines.job import Job
    from gangline.engines.result import WorkerResult

_WINDOW_S = 5.0
_TERMINAL_INTERVAL_S = 0.25
_PLAIN_INTERVAL_S = 10.0


class StepFeed:
    """Follows one worker's event log: where the job is, and how fast it goes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._recent: deque[StepDone] = deque()
        self._global_batch = 0

    def refresh(self) -> None:
        """Reads what was written since the last time."""
        try:
            events, self._offset = tail_events(self._path, self._offset)
        except LogError:
            return
        for event in events:
            if isinstance(event, ViewAdopted):
                self._global_batch = sum(event.shares)
            elif isinstance(event, StepDone):
                self._recent.append(event)
        while len(self._recent) > 2 and self._recent[-1].t - self._recent[0].t > _WINDOW_S:
            self._recent.popleft()

    def line(self) -> str:
        """Epoch, step, and the pace of the last seconds."""
        if not self._recent:
            return "starting"
        last = self._recent[-1]
        text = f"epoch {last.epoch}  step {last.step}"
        elapsed_s = last.t - self._recent[0].t
        if len(self._recent) < 2 or elapsed_s <= 0:
            return text
        step_s = elapsed_s / (len(self._recent) - 1)
        if self._global_batch:
            text += f"  {self._global_batch / step_s:,.0f} samples/s"
        return f"{text}  {step_s * 1000:,.1f} ms/step"


class ProgressLine:
    """One line that is rewritten on a terminal; elsewhere a new line now and then."""

    def __init__(
        self, console: Console, feed: StepFeed, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._feed = feed
        self._clock = clock
        self._live: Live | None = None
        self._interval_s = _TERMINAL_INTERVAL_S if console.is_terminal else _PLAIN_INTERVAL_S
        self._shown_s = clock()
        self._last_line = ""
        if console.is_terminal:
            self._live = Live(Text(""), console=console, auto_refresh=False, transient=True)
            self._live.start()

    def tick(self) -> None:
        """Shows the newest line, when it is time."""
        now_s = self._clock()
        if now_s - self._shown_s < self._interval_s:
            return
        self._shown_s = now_s
        self._feed.refresh()
        line = self._feed.line()
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        elif line != self._last_line:
            self._console.print(Text(line))
        self._last_line = line

    def close(self) -> None:
        """Leaves the terminal as it was."""
        if self._live is not None:
            self._live.stop()


class OutputFollower:
    """Shows what one worker writes, each line with the worker's id before it."""

    def __init__(self, worker: int, path: Path, console: Console) -> None:
        self._prefix = f"[{worker}] "
        self._path = path
        self._console = console
        self._offset = 0
        self._rest = b""

    def tick(self) -> None:
        """Shows the lines that are whole by now."""
        try:
            with os.fdopen(open_plain(self._path), "rb") as file:
                file.seek(self._offset)
                block = file.read()
        except OSError:
            return
        self._offset += len(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            self._show(line)

    def close(self) -> None:
        """Shows the rest, also a last line without an end."""
        self.tick()
        if self._rest:
            self._show(self._rest)
            self._rest = b""

    def _show(self, line: bytes) -> None:
        self._console.print(Text(self._prefix + line.decode(errors="replace").rstrip("\r")))


class ScreenWatcher:
    """Shows a running job; as a context manager it leaves the screen tidy."""

    def __init__(
        self, job: Job, console: Console, *, show_progress: bool, show_output: bool
    ) -> None:
        feed = StepFeed(log_path(job.run_dir, "worker 0"))
        self._progress = ProgressLine(console, feed) if show_progress else None
        workers = range(len(job.speeds)) if show_output else ()
        self._followers = [
            OutputFollower(worker, job.log_of(worker), console) for worker in workers
        ]

    def __enter__(self) -> ScreenWatcher:
        return self

    def __exit__(self, *exception: Any) -> None:
        for follower in self._followers:
            follower.close()
        if self._progress is not None:
            self._progress.close()

    def tick(self) -> None:
        """Shows what is new."""
        for follower in self._followers:
            follower.tick()
        if self._progress is not None:
            self._progress.tick()

    def worker_ended(self, result: WorkerResult) -> None:
        """The end of the job tells how its workers ended."""
