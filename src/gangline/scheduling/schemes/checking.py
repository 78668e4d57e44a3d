# SPDX-License-Identifier: Apache-2.0
"""A user's own scheme is tried on a small loop before a large one relies on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.scheduling.chunks import Loop
from gangline.scheduling.schemes.bounded import Bounded
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRIED = Loop(total=37, workers=3, weights=(1.0, 1.0, 1.0))


def check_scheme(maker: Any, parameters: Mapping[str, float], *, name: str) -> None:
    """Makes a scheme and has it cut a loop of 37 items. Raises UsageError with what is wrong."""
    try:
        scheme = maker(_TRIED, **parameters)
    except Exception as error:
        raise UsageError(
            f"scheme {name}: {type(error).__name__} when it was made: {error}; it is called with a "
            "gangline.scheduling.Loop, and with the parameters in parentheses"
        ) from error
    for method in ("next_size", "finished"):
        if not callable(getattr(scheme, method, None)):
            raise UsageError(
                f"scheme {name} has no method {method}; it needs next_size(worker, remaining) -> int "
                "and finished(worker, size, seconds, overhead_s)"
            )
    try:
        _cut(Bounded(scheme, _TRIED, name=name))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"scheme {name}: {type(error).__name__} on a loop of {_TRIED.total} items: {error}"
        ) from error


def _cut(scheme: Bounded) -> None:
    left, worker = _TRIED.total, 0
    while left:
        size = scheme.next_size(worker, left)
        scheme.finished(worker, size, 0.01 * size, 0.001)
        left, worker = left - size, (worker + 1) % _TRIED.workers
