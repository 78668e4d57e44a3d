# SPDX-License-Identifier: Apache-2.0
"""Notices, at the end of an epoch, that the workers' parameters have become different.

All members of a group apply the same gradients, so their parameters stay the same; on unlike hardware
up to rounding. They do not where a loop steps on a value that each worker computes for itself, puts
gradients there by hand, or loads what one worker has trained. Each worker brings three sums over its
parameters: small differences in these sums show any difference that is more than rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gangline.spec.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

_TOLERANCE, _ROUGH_TOLERANCE = 1e-3, 3e-2
"""How far apart parameters may be, by their norm: in full precision, and in half."""


class Replicas:
    """The parameters of the prepared models, as sums that can be compared."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._parameters = [p for model in models for p in model.parameters()]
        is_rough = any(p.itemsize < 4 for p in self._parameters)
        self._tolerance = _ROUGH_TOLERANCE if is_rough else _TOLERANCE

    def figures(self) -> Tensor:
        """Some sums of this worker's parameters, their squares, and the square of their norm."""
        sums, square = torch.zeros(2, dtype=torch.float64), 0.0
        for parameter in self._parameters:
            flat = parameter.detach().reshape(-1)
            for place in (0, 1):
                sums[place] += flat[place::2].sum(dtype=torch.float64).cpu()
            square += float(torch.linalg.vector_norm(flat, dtype=torch.float64)) ** 2
        return torch.cat([sums, sums.square(), torch.tensor([square], dtype=torch.float64)])

    def check(self, figures: Sequence[float], *, size: int, epoch: int) -> None:
        """Raises MismatchError if the figures that all members added up are not the same ones.

        Where they are not finite there is nothing to compare: the model is spoilt everywhere.
        """
        added = torch.tensor(figures, dtype=torch.float64)
        mean, of_squares = added[:2] / size, added[2:4] / size
        spread = float((of_squares - mean.square()).clamp(min=0).sum())
        norm = max(float(added[4]) / size, 1e-300)
        # What is left of a difference between two large numbers is rounding, too.
        rounding = 1e-12 * float(of_squares.sum())
        if spread > self._tolerance**2 * norm + rounding:
            raise MismatchError(
                f"at the end of epoch {epoch} the workers have different parameters (by about "
                f"{(spread / norm) ** 0.5:.1g} of their norm): something changes them on each worker "
                "by itself. Optimizer steps must be made by all workers or by none (decide by "
                "gangline.any(…) or gangline.all(…)), gradients must come from backward() (or be the "
                "same everywhere, as gangline.mean(…) makes them), what is loaded must be the same, "
                "and an optimizer's state must be in its state_dict()"
            )
