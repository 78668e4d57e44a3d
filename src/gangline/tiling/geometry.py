# SPDX-License-Identifier: Apache-2.0
"""Ranges and boxes of indices: which part of a layer's input a part of its output needs.

A range is start and stop along one dimension; a box is a range for each dimension of a tensor. All
indices are those of the uncut tensor. An empty range is (0, 0).
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

Range = tuple[int, int]
Box = tuple[Range, ...]
Shape = tuple[int, ...]

EMPTY: Range = (0, 0)


def whole(shape: Sequence[int]) -> Box:
    """The box of everything."""
    return tuple((0, length) for length in shape)


def lengths(box: Box) -> Shape:
    """The shape of what is in the box."""
    return tuple(stop - start for start, stop in box)


def volume(box: Box) -> int:
    """The number of elements in the box."""
    product = 1
    for start, stop in box:
        product *= stop - start
    return product


def overlap(one: Box, other: Box) -> Box | None:
    """What is in both boxes; None if that is nothing."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return None if any(start >= stop for start, stop in common) else common


def hull(boxes: Sequence[Box]) -> Box:
    """The smallest box that all of these boxes are in; empty ones count nothing.

    Where all are empty it is the first of them.
    """
    filled = [box for box in boxes if volume(box)]
    if not filled:
        return boxes[0]
    return tuple(
        (min(start for start, _ in ranges), max(stop for _, stop in ranges))
        for ranges in zip(*filled, strict=True)
    )


def inside(box: Box, outer: Box) -> tuple[slice, ...]:
    """Where a box lies in a tensor that holds the box `outer`."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(box, outer, strict=True))


def cut(length: int, weights: Sequence[float]) -> list[Range]:
    """Cuts `length` indices into ranges in proportion to the weights, rounded to whole indices."""
    total = sum(weights)
    bounds = [0, *(round(length * part / total) for part in accumulate(weights))]
    bounds[-1] = length
    ranges = pairwise(bounds)
    return [(start, stop) if start < stop else EMPTY for start, stop in ranges]


class Window(NamedTuple):
    """How a layer looks at its input along one dimension: convolution, or pooling."""

    kernel: int = 1
    stride: int = 1
    before: int = 0
    """How many places the input is padded by in front; `after` is how many behind."""
    after: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """From the first to the last input place of one output place, both included."""
        return self.dilation * (self.kernel - 1) + 1

    def places(self, length: int) -> int:
        """The length of the output for an input of this length."""
        return (length + self.before + self.after - self.reach) // self.stride + 1

    def padded(self, output: Range) -> Range:
        """The input range that an output range looks at; what lies outside of the input is padding."""
        start, stop = output
        return start * self.stride - self.before, (
            stop - 1
        ) * self.stride - self.before + self.reach

    def needs(self, output: Range, length: int) -> Range:
        """The part of an input of this length that an output range is computed from."""
        if output[0] >= output[1]:
            return EMPTY
        start, stop = self.padded(output)
        start, stop = max(start, 0), min(stop, length)
        return (start, stop) if start < stop else EMPTY

    def padding(self, output: Range, length: int) -> tuple[int, int]:
        """How many places of padding an output range sees in front of the input and behind it.

        Where it sees nothing but padding, all of it is in front.
        """
        start, stop = self.padded(output)
        if self.needs(output, length) == EMPTY:
            return stop - start, 0
        return max(0, -start), max(0, stop - length)
