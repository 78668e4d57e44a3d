# SPDX-License-Identifier: Apache-2.0
"""The objects that the user gave to `prepare`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangline.spec.sync import IN_STEP, Sync

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from gangline.worker.samples.generators import Numbers


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The objects that the user gave to `prepare`."""

    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    stateful: Sequence[Any]
    generators: Sequence[Numbers] = ()
    """The loader's generators, whose state a checkpoint must keep."""
    sync: Sync = IN_STEP
    """How tightly groups of workers are held together, as asked for."""
    sync_batchnorm: bool = False
    """Whether BatchNorm layers normalise by the samples of all members."""
    evicts_wrong: bool = False
    """Whether a worker whose gradient is wrong is put out, and its batch done by the others."""
    is_sum: bool = False
    """Whether the loss is a sum over the batch."""
    is_pulled: bool = False
    """Whether parts of each global batch are to be pulled, as asked for."""
