# SPDX-License-Identifier: Apache-2.0
"""Who owns which tile: the workers of a job as a grid over dimensions of the activations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from gangline.spec.errors import UsageError
from gangline.tiling.geometry import Box, Shape, cut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Dims: TypeAlias = "int | Mapping[int, int | Sequence[float]]"
"""A dimension to cut evenly over all workers; or the number of tiles, or their weights, of several."""

_TO_DO = "say dims={2: 2, 3: 2} for 2 x 2 tiles, or dims={2: [3, 1]} for two of unlike size"


class Grid:
    """The workers along each dimension that is cut; the last dimension varies fastest with the rank."""

    def __init__(self, dims: Dims, size: int) -> None:
        asked = {dims: size} if isinstance(dims, int) else dict(dims)
        self._weights = {dim: _weights(dim, asked[dim]) for dim in sorted(asked)}
        self.size = math.prod(len(weights) for weights in self._weights.values())
        if self.size != size:
            raise UsageError(
                f"dims={dims!r} makes {self.size} tiles, and there are {size} workers, which have one "
                f"each: {_TO_DO}"
            )

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions that are cut: 0 is the batch, 1 the channels, all others are space."""
        return tuple(self._weights)

    def check(self, shape: Shape) -> None:
        """Raises UsageError where the input has no such dimensions."""
        wrong = [dim for dim in self.dims if dim >= len(shape)]
        if wrong:
            raise UsageError(
                f"dims names dimension {wrong[0]}, and the input of shape {shape} has the dimensions "
                f"0 to {len(shape) - 1} (0: batch, 1: channels, then space)"
            )

    def boxes(self, shape: Shape) -> list[Box]:
        """Each worker's own tile of a tensor of this shape. Together they are the tensor.

        A tensor of samples and features (what dense layers make) has no space: all workers that have
        the same samples divide its features.
        """
        if len(shape) > 2 or self.dims == (0,):
            return [self._box(shape, self._place(rank)) for rank in range(self.size)]
        rows = cut(shape[0], self._weights.get(0, [1.0]))
        inner = [1.0]
        for dim, weights in self._weights.items():
            inner = [have * w for have in inner for w in weights] if dim else inner
        columns = cut(shape[1], inner)
        return [(row, column) for row in rows for column in columns]

    def _place(self, rank: int) -> dict[int, int]:
        """The worker's coordinate along each dimension that is cut."""
        place = {}
        for dim in reversed(self.dims):
            rank, place[dim] = divmod(rank, len(self._weights[dim]))
        return place

    def _box(self, shape: Shape, place: Mapping[int, int]) -> Box:
        return tuple(
            cut(length, self._weights[dim])[place[dim]] if dim in place else (0, length)
            for dim, length in enumerate(shape)
        )


def _weights(dim: int, asked: int | Sequence[float]) -> list[float]:
    if not isinstance(dim, int) or dim < 0:
        raise UsageError(f"a dimension is 0, 1, 2, …, not {dim!r}: {_TO_DO}")
    weights = [1.0] * asked if isinstance(asked, int) else [float(weight) for weight in asked]
    if not weights or not all(0 < weight < math.inf for weight in weights):
        raise UsageError(
            f"dimension {dim} is cut into {asked!r}, and that takes a tile or more, and weights "
            f"above 0: {_TO_DO}"
        )
    return weights
