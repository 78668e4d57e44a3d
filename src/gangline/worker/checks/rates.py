# SPDX-License-Identifier: Apache-2.0
"""Learning rates must be the same on all workers: schedulers are the user's, and each has its own."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from gangline.spec.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from gangline.worker.gradients.agreement import Agreed


def rates_checksum(optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """A number that differs where the rates do."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups if "lr" in group]
    return zlib.crc32(repr([float(rate) for rate in rates]).encode())


def check_rates(agreed: Agreed) -> None:
    """Raises MismatchError where the workers' rates differ."""
    if agreed.differ(lambda said: said.checks.rates):
        raise MismatchError(
            f"the learning rates differ between workers at step {agreed.most.batch.step}: a scheduler "
            "follows a value that each worker computes for itself. Give it the mean over all "
            "workers, e.g. scheduler.step(gangline.mean(loss, weight=num_samples))"
        )
