# SPDX-License-Identifier: Apache-2.0
"""What a pool tells its processes, and what they answer, over private pipes.

Pickle is used because a test's functions and values may be anything; the pipe connects a process to
the parent that started it and to nobody else.
"""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a function in one process."""

    function: bytes
    """Pickled by reference: the module and the name."""
    arguments: bytes
    environment: dict[str, str]
    """Set during the call only."""
    path: list[str]
    """Where the caller finds its modules."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a task: a value, or the traceback of what was raised."""

    value: bytes | None = None
    traceback: str | None = None


def task_of(
    function: Callable[..., Any], args: Sequence[Any], environment: Mapping[str, str]
) -> Task:
    """Packs a call; the function must be one that another process can import."""
    module = getattr(function, "__module__", None)
    if module == "__main__" or "<locals>" in getattr(function, "__qualname__", "<locals>"):
        raise UsageError(
            f"workers must be able to import {function!r}: "
            "make it a top-level function of a module (not of the script that is run)"
        )
    return Task(
        function=pickle.dumps(function),
        arguments=pickle.dumps(tuple(args)),
        environment=dict(environment),
        path=list(sys.path),
    )
