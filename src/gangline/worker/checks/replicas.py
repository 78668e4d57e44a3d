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
_ROW = 2048


class Replicas:
    """The parameters of the prepared models, as sums that can be compared."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._parameters = [p for model in models for p in model.parameters()]
        is_rough = any(p.itemsize < 4 for p in self._parameters)
        self._tolerance = _ROUGH_TOLERANCE if is_rough else _TOLERANCE

    def figures(self) -> Tensor:
        """Some sums of this worker's parameters, their squares, and the square of their norm."""
        sums, square = torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        for parameter in self._parameters:
            rows, norms = _by_rows(parameter.detach())
            sums += torch.stack([rows[0::2].sum(), rows[1::2].sum()]).cpu()
            square += norms.square().sum().cpu()
        return torch.cat([sums, sums.square(), square])

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


def _by_rows(parameter: Tensor) -> tuple[Tensor, Tensor]:
    """The sums and the norms of rows of a parameter, in double precision.

    Within a row it is added in its own precision, or in single: that is ten times as fast, and rows
    are so short that what is rounded there is far less than what may differ.
    """
    real = torch.view_as_real(parameter) if parameter.is_complex() else parameter
    flat = real.reshape(-1)
    dtype = torch.promote_types(flat.dtype, torch.float32)
    whole = flat.numel() // _ROW * _ROW
    rows, rest = flat[:whole].view(-1, _ROW), flat[whole:].to(torch.float64)
    sums = rows.sum(1, dtype=dtype).to(torch.float64)
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=dtype).to(torch.float64)
    return torch.cat([sums, rest]), torch.cat([norms, rest])
