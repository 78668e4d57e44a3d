# SPDX-License-Identifier: Apache-2.0
"""How far a loop is: a bar on a terminal, elsewhere a line now and then, on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.progress import Progress

TICK_S = 0.1
_PLAIN_S = 10.0


class Bar:
    """Shows how many rows are done. `show` is called now and then."""

    def __init__(
        self, total: int, *, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._name = name
        self._clock = clock
        self._said_s = clock()
        self._bar: Progress | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = self._stack.enter_context(_rich_bar())
            self._bar.add_task(self._name, total=self._total)
        return self

    def show(self, done: int) -> None:
        """This many rows are done."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)
        elif self._clock() - self._said_s >= _PLAIN_S:
            self._said_s = self._clock()
            self._say(done)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        if self._bar is None and error is None:
            self._say(self._total)

    def _say(self, done: int) -> None:
        percent = 100 * done // max(1, self._total)
        sys.stderr.write(f"{self._name}: {done} of {self._total} rows ({percent} %)\n")


def _rich_bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
