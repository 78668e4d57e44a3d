# SPDX-License-Identifier: Apache-2.0
"""Loops that update the parameters themselves: `prepare` was given no optimizer.

Such an update is not seen, so the parameters are part of the `Snapshot`: after a failed attempt at a
step they are as they were at its hand-out, whatever the loop did with them. An optimizer has state of
its own that would not be put back, so one that was kept from `prepare` is noticed at its first step.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from gangline.spec.errors import UnsupportedError, UsageError
from gangline.worker.gradients.layout import optimizer_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from gangline.worker.prepare.prepared import Prepared


def refuse_other_optimizers(models: Sequence[nn.Module]) -> RemovableHandle:
    """From now on an optimizer that steps the models' parameters raises; until `remove()`."""
    own = {id(parameter) for model in models for parameter in model.parameters()}

    def check(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if any(id(parameter) in own for parameter in optimizer_parameters(optimizer)):
            raise UsageError(
                f"a {type(optimizer).__name__} optimizer updates the prepared model, and prepare() was "
                "given none: its state would differ between workers. Call "
                "model, optimizer, loader = gangline.prepare(model, optimizer, loader)"
            )

    return register_optimizer_step_pre_hook(check)


def check_windows(prepared: Prepared) -> None:
    """Refuses windows that the loop counts itself: nobody could see that they end."""
    if not prepared.optimizers:
        raise UnsupportedError(
            "no_sync() needs an optimizer, whose step() exchanges what was collected; without one use "
            "prepare(..., accumulate=k) and update where gangline.is_update() is true"
        )


@functools.cache
def warn_of_windows() -> None:
    """Says, once, that `no_sync` over several batches saves no exchange."""
    warnings.warn(
        "no_sync() spans several batches: what was added up is exchanged at the end of each of them, "
        "so that nothing is lost with a worker. prepare(…, accumulate=k) exchanges once for k batches",
        stacklevel=2,
    )
