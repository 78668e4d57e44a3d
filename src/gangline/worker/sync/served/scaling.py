# SPDX-License-Identifier: Apache-2.0
"""What a fused optimizer does for a GradScaler within its own step, where servers make the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


def unscale(optimizer: Optimizer) -> bool:
    """Divides the gradients by the scale, where that is left to the step.

    False: the step is to be skipped, because a gradient is not finite. Other optimizers are not even
    called then, and find their gradients divided.
    """
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    if found_inf is not None and found_inf.item():
        return False
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(scale.to(parameter.grad.device))
    return True
