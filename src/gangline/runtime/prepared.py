# SPDX-License-Identifier: Apache-2.0
"""The objects that the user gave to `prepare`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The objects that the user gave to `prepare`."""

    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    stateful: Sequence[Any]
    evicts_non_finite: bool = False
    """Whether a worker whose gradient is not finite is put out, and its batch done by the others."""
