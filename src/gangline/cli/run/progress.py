# SPDX-License-Identifier: Apache-2.0
"""What `gangline run` shows while a job runs: one line of progress, and the workers' output.

Both are read from files that the workers write, so a worker never waits for the screen.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.text import Text

from gangline.cli.run.interrupts import InterruptFilter
from gangline.cli.run.news import News
from gangline.eventlog import events_dir, log_path, tail_events
from gangline.files.plainfile import open_plain
from gangline.spec.errors import LogError
from gangline.spec.event import StepDone, ViewAdopted

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from gangline.engines.job import Job
    from gangline.engines.result import WorkerResult

Greeting = Callable[[], Iterable[str]]
"""What is to be shown once, as soon as it is known; nothing until then."""
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
        self._num_members = 0
        self._most_members = 0
        self._team = ""
        self.stage = "starting"
        """What is shown before the first step."""

    def follow(self, path: Path) -> None:
        """Another worker's log is followed from here on."""
        if path != self._path:
            self._path, self._offset = path, 0
            self._recent.clear()

    def refresh(self) -> None:
        """Reads what was written since the last time."""
        try:
            events, self._offset = tail_events(self._path, self._offset)
        except LogError:
            return
        for event in events:
            if isinstance(event, ViewAdopted):
                self._global_batch = sum(event.shares)
                self._note_members(event)
            elif isinstance(event, StepDone):
                self._recent.append(event)
        while len(self._recent) > 2 and self._recent[-1].t - self._recent[0].t > _WINDOW_S:
            self._recent.popleft()

    def _note_members(self, event: ViewAdopted) -> None:
        self._num_members = len(event.members)
        self._team = f"team {event.team} of {event.whole} workers" if event.whole else ""
        # Others train elsewhere, at their own pace: nobody is missing.
        most = 0 if event.whole else self._most_members
        self._most_members = max(most, self._num_members)

    def line(self) -> str:
        """Epoch, step, the pace of the last seconds, and how many take part, if some do not."""
        if not self._recent:
            return self.stage
        last = self._recent[-1]
        text = f"epoch {last.epoch}  step {last.step}"
        elapsed_s = last.t - self._recent[0].t
        if len(self._recent) < 2 or elapsed_s <= 0:
            return text
        step_s = elapsed_s / (len(self._recent) - 1)
        if self._global_batch:
            text += f"  {self._global_batch / step_s:,.0f} samples/s"
        text += f"  {step_s * 1000:,.1f} ms/step"
        if self._num_members < self._most_members:
            text += f"  {self._num_members} of {self._most_members} workers"
        if self._team:
            text += f"  ({self._team})"
        return text


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
    """Shows what one worker writes; all workers' output has the worker's id before each line."""

    def __init__(
        self, worker: int, path: Path, console: Console, *, has_prefix: bool, is_shown: bool
    ) -> None:
        self._prefix = f"[{worker}] " if has_prefix else ""
        self._path = path
        self._console = console
        self._offset = 0
        self._rest = b""
        self._is_shown = is_shown
        self._filter = InterruptFilter()
        self.has_shown = False
        """Whether something was shown."""

    def show(self, is_shown: bool) -> None:
        """Whether what comes from here on is shown; what came while it was not is left out."""
        if is_shown and not self._is_shown:
            self._offset = self._path.stat().st_size if self._path.exists() else 0
        elif not is_shown:
            self.close()
        self._is_shown = is_shown

    def tick(self) -> None:
        """Shows the lines that are whole by now."""
        if not self._is_shown:
            return
        try:
            with os.fdopen(open_plain(self._path), "rb") as file:
                file.seek(self._offset)
                block = file.read()
        except OSError:
            return
        self._offset += len(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            self._show(self._filter.take(line))

    def close(self) -> None:
        """Shows the rest, also a last line without an end."""
        self.tick()
        if self._rest:
            self._show(self._filter.take(self._rest))
            self._rest = b""
        self._show(self._filter.close())

    def _show(self, lines: list[bytes]) -> None:
        for line in lines:
            self.has_shown = True
            # Of a line that was written over (a progress bar), the last state is shown.
            last = line.rstrip(b"\r").rpartition(b"\r")[2]
            self._console.print(Text(self._prefix + last.decode(errors="replace")))


class ScreenWatcher:
    """Shows a running job; as a context manager it leaves the screen tidy.

    Without `show_output`, what the main worker prints is shown as it comes; with it, what all do.
    """

    def __init__(
        self,
        job: Job,
        console: Console,
        *,
        show_progress: bool,
        show_output: bool,
        is_quiet: bool = False,
        greeting: Greeting = lambda: (),
    ) -> None:
        self._job = job
        self._greeting = greeting
        self._is_greeted = False
        self._is_following = False
        self._console = console
        self._is_quiet = is_quiet
        self._shows_all = show_output
        self._feed = StepFeed(log_path(job.run_dir, "worker 0"))
        self._progress = ProgressLine(console, self._feed) if show_progress else None
        self._news = None if is_quiet else News(job.run_dir)
        self._followers: dict[int, OutputFollower] = {}
        num_workers = job.config.num_own
        for worker in range(num_workers) if show_output or not is_quiet else ():
            self._followers[worker] = OutputFollower(
                worker,
                job.log_of(worker),
                console,
                has_prefix=show_output,
                is_shown=show_output or worker == 0,
            )

    def __enter__(self) -> ScreenWatcher:
        return self

    def __exit__(self, *exception: Any) -> None:
        for follower in self._followers.values():
            follower.close()
        if self._progress is not None:
            self._progress.close()

    def has_shown(self, worker: int) -> bool:
        """Whether something that a worker wrote was shown."""
        return worker in self._followers and self._followers[worker].has_shown

    def tick(self) -> None:
        """Shows what is new."""
        if not self._is_greeted:
            for line in self._greeting():
                self._is_greeted = True
                self._console.print(Text(line))
        for follower in self._followers.values():
            follower.tick()
        for line in () if self._news is None else self._news.take():
            self._console.print(Text(line, style="dim"))
        if self._progress is not None:
            self._follow_joined()
            self._progress.tick()

    def _follow_joined(self) -> None:
        """A worker that joins is given its number by the coordinator: its log tells which."""
        if self._job.coordinator is None or self._is_following:
            return
        logs = sorted(events_dir(self._job.run_dir).glob("worker-*.jsonl"))
        if logs:
            self._is_following = True
            self._feed.follow(logs[0])

    def begins(self, come: int) -> None:
        """Shows how many are here: the first step waits for all."""
        expected = len(self._job.speeds)
        self._feed.stage = f"starting: {come} of {expected} workers are here"
        if come >= expected:
            self._feed.stage = f"preparing: all {come} workers are here"

    def main_is(self, worker: int) -> None:
        """From here on, this worker's progress is shown, and what it prints, unless it is elsewhere."""
        self._feed.stage = "prepared: the first step is under way"
        if self._job.coordinator is None:  # of who joined, the log is sent here
            self._feed.follow(log_path(self._job.run_dir, f"worker {worker}"))
        if worker not in self._followers:
            return
        for number, follower in self._followers.items():
            if not self._shows_all:
                follower.show(number == worker)

    def note(self, what: str, reason: str, **numbers: float) -> None:
        """Shows what people should know."""
        if not self._is_quiet:
            self._console.print(Text(reason))

    def worker_ended(self, result: WorkerResult) -> None:
        """The end of the job tells how its workers ended."""
