# SPDX-License-Identifier: Apache-2.0
"""What the workers agree on without a message of its own: the header of the last unit.

Every worker states a few integers; the exchange brings back the maximum of each. A value and its
negative together give the minimum too, so one reduction tells whether all workers said the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives import Header


class Statement(NamedTuple):
    """What one worker knows at the end of a backward pass."""

    view: int
    epoch: int
    step: int
    micro: int
    """Which part of an accumulation window."""
    phase: int
    """Which backward pass since the batch was handed out."""
    gradients: int
    """A checksum of which parameters have a gradient."""
    buffers: int
    """A checksum of which buffers have changed."""
    rates: int
    """A checksum of the learning rates."""
    newest_view: int
    """The newest view that this worker holds; the least of these is held by all."""
    last_cut: int
    """The furthest step whose batch this worker has cut; loaders with processes cut ahead."""
    usual: int
    """The largest size of a gradient that this worker has seen lately."""
    evicts: int
    """1 where this worker wants those put out whose gradient is wrong; one that does is enough."""
    opened: int = -1
    arrived: int = -1
    held: int = -1
    closed: int = -1
    """The rounds that merge this worker's team with others, see `runtime.merging`."""


class Agreed(NamedTuple):
    """The smallest and the largest statement, field by field, and what each unit and member adds."""

    least: Statement
    most: Statement
    units: tuple[bool, ...]
    """Which units somebody has changed."""
    sizes: tuple[int, ...]
    """By rank, how large each member's own part of the gradient is."""

    def differ(self, *fields: str) -> bool:
        """Whether the workers' statements differ in one of these fields."""
        return any(getattr(self.least, name) != getattr(self.most, name) for name in fields)


def encode(statement: Statement, units: Sequence[bool], sizes: Sequence[int]) -> Header:
    """The header for the exchange. Of the sizes, a member states its own; the others' are 0."""
    values = np.array(statement, dtype=np.int64)
    return np.concatenate([values, -values, np.array([*units, *sizes], dtype=np.int64)])


def decode(header: Header, *, num_units: int) -> Agreed:
    """The header after the exchange."""
    width = len(Statement._fields)
    first_size = 2 * width + num_units
    most = Statement(*(int(value) for value in header[:width]))
    least = Statement(*(-int(value) for value in header[width : 2 * width]))
    units = tuple(bool(value) for value in header[2 * width : first_size])
    return Agreed(least, most, units, tuple(header[first_size:].tolist()))
