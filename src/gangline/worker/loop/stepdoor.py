# SPDX-License-Identifier: Apache-2.0
"""The `step` of one optimizer, by way of ours.

Torch's hooks before a step cannot keep it from being made, so a method of the same name stands before
it on the optimizer itself. It looks like the method of the class: schedulers put another one before
it, and a GradScaler reads its signature.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Around = Callable[["torch.optim.Optimizer", Callable[..., Any], Any, Any], Any]
    """Is given the optimizer, what its `step` was, and what it was called with."""


class StepDoor:
    """Calls `around` whenever `optimizer.step` is called, until it is closed."""

    def __init__(self, optimizer: torch.optim.Optimizer, around: Around) -> None:
        self._optimizer = optimizer
        self._around: Around | None = around
        self._before = vars(optimizer).get("step")
        """What stood there already: that of a scheduler."""
        original = optimizer.step

        @functools.wraps(getattr(original, "__func__", original))
        def step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self._around is None:
                return original(*args, **kwargs)
            return self._around(optimizer, original, args, kwargs)

        self._step = types.MethodType(step, optimizer)
        optimizer.step = self._step  # type: ignore[method-assign]

    def close(self) -> None:
        """The optimizer's `step` is its own again."""
        self._around = None
        if vars(self._optimizer).get("step") is not self._step:
            return  # a scheduler stands before it
        if self._before is None:
            del self._optimizer.step
        else:
            self._optimizer.step = self._before  # type: ignore[method-assign]
