# SPDX-License-Identifier: Apache-2.0
"""What every layer that can be tiled says of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gangline.tiling.exchange import Peers
    from gangline.tiling.geometry import Box, Range, Shape


class Part(NamedTuple):
    """The part of a layer's output that this worker computes."""

    box: Box
    owned: Box
    """What of it counts where something is added up over all workers: each place once."""
    needs: tuple[Box, ...]
    """What is given of each input."""
    shapes: tuple[Shape, ...]
    """Of the uncut inputs."""
    shape: Shape
    """Of the uncut output."""
    peers: Peers


class Layer(ABC):
    """One step of a model."""

    meets = False
    """Whether all workers meet in it, so that also one without any output takes part."""
    uses_own = False
    """Whether it needs this worker's own tile of its input, whatever part of the output is asked."""

    @abstractmethod
    def needs(self, box: Box, shapes: Sequence[Shape], shape: Shape) -> tuple[Box, ...]:
        """What of each input is needed for a part of the output. Shapes are those of uncut tensors."""

    @abstractmethod
    def compute(self, inputs: Sequence[Tensor], part: Part) -> Tensor:
        """The part of the output, from what `needs` has asked for."""

    def work(self, shapes: Sequence[Shape]) -> float:
        """Floating point operations for one element of the output."""
        return 1.0


def each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """A setting of a torch layer, for each dimension of space."""
    return (value,) * dims if isinstance(value, int) else tuple(value)


def along(tensor: Tensor, dim: int, span: Range) -> Tensor:
    """A range of a tensor along one dimension."""
    return tensor.narrow(dim, span[0], span[1] - span[0])
