# SPDX-License-Identifier: Apache-2.0
"""The user's function on a chunk of rows, wherever it is called."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gangline.spec.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.mapreduce.inputs import Inputs

_MAX_TEXT = 2000
"""What an error says of itself is cut here."""


class Work:
    """A function and its arguments."""

    def __init__(
        self, function: Callable[..., Any], inputs: Inputs, rows: tuple[int, int] | None = None
    ) -> None:
        """`rows`: the first of them, and that behind the last; all where it is not given."""
        self.function = function
        self.inputs = inputs
        self.first, stop = rows or (0, inputs.num_rows)
        self.num_rows = stop - self.first

    def part(self, start: int, stop: int) -> Work:
        """The same for some of the rows, which are counted from 0 again."""
        return Work(self.function, self.inputs, (self.first + start, self.first + stop))

    def do(self, start: int, stop: int, device: str = "") -> tuple[Any, float]:
        """What the function returns for these rows, and its seconds: cutting them is not among these.

        What it raises is told with the rows. It is told the device, where workers have one.
        """
        start, stop = self.first + start, self.first + stop
        try:
            arguments = self.inputs.arguments(start, stop)
            told = {"device": device} if device else {}
            begun = time.perf_counter()
            value = self.function(*arguments, **told)
            return value, time.perf_counter() - begun
        except (Exception, SystemExit) as error:
            what = f"{type(error).__name__}: {_text_of(error)}"[:_MAX_TEXT]
            whose = f"{rows_text(start, stop)} of {self.inputs.num_rows}"
            raise FunctionError(f"{name_of(self.function)} failed for {whose}: {what}") from error


def _text_of(error: BaseException) -> str:
    """What an error says of itself. It is the user's, and may fail at that, too."""
    try:
        return str(error)
    except Exception as failure:
        return f"(what it says is not known: its __str__ raises {type(failure).__name__})"


def rows_text(start: int, stop: int) -> str:
    """Which rows, for a person; the first row is 0."""
    if stop - start == 1:
        return f"row {start}"
    return f"rows {start} to {stop - 1}" if stop > start else "no rows"


def name_of(function: Callable[..., Any]) -> str:
    """What the user calls it."""
    name: str = getattr(function, "__qualname__", None) or type(function).__name__
    return name
