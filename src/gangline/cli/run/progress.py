# SPDX-License-Identifier: Apache-2.0
"""What `gangline run` shows while a job runs: one line of progress, and the workers' output.

Both are read from files that the workers write, so a worker never waits for the screen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.text import Text

from gangline.cli.run.interrupts import InterruptFilter
from gangline.cli.run.liveline import LiveFeed
from gangline.cli.run.news import News
from gangline.files.plainfile import open_plain

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from gangline.engines.job import Job
    from gangline.engines.result import WorkerResult

Greeting = Callable[[], Iterable[str]]
"""What is to be shown once, as soon as it is known; nothing until then."""
_TERMINAL_INTERVAL_S = 0.5
_PLAIN_INTERVAL_S = 10.0
_MAX_PLAIN = 160
"""Decisions, which can be long, come last; they are in the log."""


class ProgressLine:
    """One line that is rewritten on a terminal; elsewhere a new line now and then."""

    def __init__(
        self, console: Console, feed: LiveFeed, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._feed = feed
        self._clock = clock
        self._live: Live | None = None
        # A notebook is not written over line by line: it gets plain ones.
        is_rewritten = console.is_terminal and not console.is_jupyter
        self._interval_s = _TERMINAL_INTERVAL_S if is_rewritten else _PLAIN_INTERVAL_S
        self._shown_s = clock()
        self._last_line = ""
        if is_rewritten:
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
            short = Text(line, no_wrap=True, overflow="ellipsis")
            self._live.update(short, refresh=True)
        elif line != self._last_line:
            self._console.print(Text(_cut(line)))
        self._last_line = line

    def close(self) -> None:
        """Leaves the terminal as it was."""
        if self._live is not None:
            self._live.stop()


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_PLAIN else f"{line[: _MAX_PLAIN - 1]}…"


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
        self._console = console
        self._is_quiet = is_quiet
        self._shows_all = show_output
        self._feed = LiveFeed(job.run_dir)
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
            self._progress.tick()

    def begins(self, come: int) -> None:
        """Shows how many are here: the first step waits for all."""
        expected = len(self._job.speeds)
        self._feed.stage = f"starting: {come} of {expected} workers are here"
        if come >= expected:
            self._feed.stage = f"preparing: all {come} workers are here"

    def main_is(self, worker: int) -> None:
        """From here on it is shown what this worker prints, unless it is elsewhere."""
        self._feed.stage = "prepared: the first step is under way"
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
