# SPDX-License-Identifier: Apache-2.0
"""Where in the user's code something happened that was noticed deep inside of ours or torch's."""

from __future__ import annotations

import sys
from typing import NamedTuple

_INSIDE = ("contextlib", "functools", "gangline", "torch")


class Caller(NamedTuple):
    """A line of code."""

    place: str
    """`file:line`."""
    depth: int
    """How many calls up it is: what `warnings.warn` takes as its `stacklevel`."""


def find_caller() -> Caller:
    """The innermost line that is neither gangline's nor torch's."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and _is_inside(frame.f_globals.get("__name__", "")):
        frame, depth = frame.f_back, depth + 1
    return Caller(f"{frame.f_code.co_filename}:{frame.f_lineno}", depth)


def _is_inside(module: str) -> bool:
    return module.split(".")[0] in _INSIDE
