# SPDX-License-Identifier: Apache-2.0
"""The user's function on a chunk of rows, wherever it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.spec.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.mapreduce.inputs import Inputs

_MAX_TEXT = 2000
"""What an error says of itself is cut here."""


class Work:
    """A function and its arguments."""

    def __init__(self, function: Callable[..., Any], inputs: Inputs) -> None:
        self.function = function
        self.inputs = inputs
        self.num_rows = inputs.num_rows

    def do(self, start: int, stop: int) -> Any:
        """What the function returns for these rows. What it raises is told with the rows."""
        try:
            return self.function(*self.inputs.arguments(start, stop))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
            whose = f"{rows_text(start, stop)} of {self.num_rows}"
            raise FunctionError(f"{name_of(self.function)} failed for {whose}: {what}") from error


def rows_text(start: int, stop: int) -> str:
    """Which rows, for a person; the first row is 0."""
    if stop - start == 1:
        return f"row {start}"
    return f"rows {start} to {stop - 1}" if stop > start else "no rows"


def name_of(function: Callable[..., Any]) -> str:
    """What the user calls it."""
    name: str = getattr(function, "__qualname__", None) or type(function).__name__
    return name
