# SPDX-License-Identifier: Apache-2.0
"""Which function the nodes of a job mean: its module, its name, and a hash of its source."""

from __future__ import annotations

import hashlib
import inspect
from typing import TYPE_CHECKING, Any

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_TO_DO = (
    "every node must find the function by its name: define it with `def` at the top level of a module "
    "or of the script, and give what it needs as further arguments"
)


def name_everywhere(function: Callable[..., Any]) -> str:
    """A name that is the same on all nodes if the function is. Raises UsageError for closures."""
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    if name is None or module is None:
        raise UsageError(f"where='job': {function!r} has no name of its own; {_TO_DO}")
    if "<" in name:
        raise UsageError(f"where='job': {name} is a lambda or a closure; {_TO_DO}")
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # of a function in C there is none
        source = ""
    return f"{module}.{name}#{hashlib.sha256(source.encode()).hexdigest()[:16]}"
