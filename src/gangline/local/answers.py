# SPDX-License-Identifier: Apache-2.0
"""How a process of our own says what a function returned, or what it raised and why."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def answered(compute: Callable[[], Any]) -> bytes:
    """What the function returns or raises, as bytes for `outcome_of`.

    The error itself must be one that can be pickled; its cause may be anything.
    """
    try:
        return pickle.dumps((compute(), None, None), protocol=5)
    except Exception as error:
        return pickle.dumps((None, error, _pickled(error.__cause__)), protocol=5)


def outcome_of(answer: bytes) -> Any:
    """What was returned over there; what was raised over there is raised here."""
    outcome, error, cause = pickle.loads(answer)
    if error is not None:
        raise error from _unpickled(cause)
    return outcome


def _pickled(cause: BaseException | None) -> bytes | None:
    try:
        return pickle.dumps(cause)
    except Exception:  # the error's own text names it
        return None


def _unpickled(cause: bytes | None) -> Any:
    try:
        return None if cause is None else pickle.loads(cause)
    except Exception:  # the error's own text names it
        return None
