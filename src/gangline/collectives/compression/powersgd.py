# SPDX-License-Identifier: Apache-2.0
"""PowerSGD: the sum of everybody's matrices, approximated by a product of two thin ones.

The flat tensor, with what was left out before (M = G + E), is taken as a matrix that is as square as
possible. With Q of the exchange before (at first random),

    P = Σ M Q, orthonormalised      Q = Σ Mᵀ P      Ĝ = P Qᵀ      E = M − Ĝ/p

where both sums go over the p members. Being linear, P and Q are summed like any other tensor.

Members are bit-equal on unlike machines, too: what must be alike is made of P and Q, which are, by
dot products that are rounded once (`math.fsum`) and by single multiplications and additions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gangline.collectives.elements import QUIET
from gangline.spec.exchange.compression_format import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from gangline.collectives.compression.codec import Floats
    from gangline.collectives.protocol import Group, Header

_DEPENDENT = 1e-6
"""A column of which less than this is left when what it shares with others is taken away is noise."""


class Product(NamedTuple):
    """What one exchange comes to."""

    total: Tensor
    """The approximated sum, flat."""
    right: Floats
    """Q, with which the next exchange begins."""


def exchange(
    group: Group, flat: Tensor, header: Header | None, *, right: Floats, fresh: Floats
) -> Product | None:
    """Approximates the sum of everybody's tensors; None where it is not finite.

    `right` is Q, the same on all members; its columns that turn out to be of no use are replaced by
    those of `fresh`.
    """
    shape = Shape.of(flat.numel())
    matrix = torch.zeros(shape.height * shape.width, dtype=flat.dtype)
    matrix[: flat.numel()] = flat
    matrix = matrix.view(shape)
    left = matrix @ torch.from_numpy(right)
    group.all_reduce(left, header)
    is_finite = bool(torch.isfinite(left).all())
    basis = orthonormal(left.numpy()) if is_finite else left.numpy()
    # Everybody takes part to the end, whatever the numbers are: who left early would be waited for.
    weights = matrix.T @ torch.from_numpy(basis)
    group.all_reduce(weights)
    if not is_finite:
        return None
    total = _product(basis, weights.numpy()).reshape(-1)[: flat.numel()]
    if not np.isfinite(total).all():
        return None
    is_alive = np.abs(basis).max(axis=0) > 0
    return Product(torch.from_numpy(total), np.where(is_alive, weights.numpy(), fresh))


def first_right(rank: int, length: int, *, seed: int) -> Floats:
    """A random Q."""
    generator = np.random.default_rng((seed, length, rank))
    return generator.standard_normal((Shape.of(length).width, rank), dtype=np.float32)


def orthonormal(matrix: Floats) -> Floats:
    """The columns, by Gram and Schmidt; those that depend on earlier ones become zero."""
    columns: list[npt.NDArray[np.float64]] = []
    for column in matrix.T.astype(np.float64):
        rest, before = column, math.sqrt(_dot(column, column))
        for _ in range(2):  # the second time takes away what rounding left
            for other in columns:
                rest = rest - _dot(other, rest) * other
        norm = math.sqrt(_dot(rest, rest))
        columns.append(rest / norm if norm > _DEPENDENT * before else np.zeros_like(rest))
    return np.stack(columns, axis=1).astype(np.float32)


def _dot(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    return math.fsum((first * second).tolist())


def _product(left: Floats, right: Floats) -> Floats:
    """left · rightᵀ, added up column by column: a library's product differs between machines."""
    total = np.zeros((len(left), len(right)), dtype=np.float32)
    with np.errstate(**QUIET):
        for one, other in zip(left.T, right.T, strict=True):
            total += np.multiply.outer(one, other)
    return total
