# SPDX-License-Identifier: Apache-2.0
"""What the workers agree on without a message of its own: the header of the last unit.

Every worker states a few integers; the exchange brings back the maximum of each. A value and its
negative together give the minimum too, so one reduction tells whether all workers said the same.
Each who has something to say gives a section; who begins the exchange puts them together.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gangline.collectives import Header


class BatchSection(NamedTuple):
    """The loop's part: which batch its pass is of."""

    view: int
    epoch: int
    step: int
    micro: int
    """Which part of an accumulation window."""


class PassSection(NamedTuple):
    """The gradients' part: what the backward pass has changed."""

    phase: int
    """Which backward pass since the batch was handed out."""
    gradients: int
    """A checksum of which parameters have a gradient."""
    buffers: int
    """A checksum of which buffers have changed."""
    trainable: int
    """A checksum of which parameters require a gradient."""


class ViewSection(NamedTuple):
    """The part of the schedule of views."""

    newest: int
    """The newest view that this worker holds; the least of these is held by all."""
    last_cut: int
    """The furthest step whose batch this worker has cut; loaders with processes cut ahead."""


class CheckSection(NamedTuple):
    """The part of those who look whether something is wrong."""

    rates: int
    """A checksum of the learning rates."""
    usual: int
    """The largest size of a gradient that this worker has seen lately."""
    evicts: int
    """1 where this worker wants those put out whose gradient is wrong; one that does is enough."""


class RoundSection(NamedTuple):
    """The strategy's part: the newest rounds of merging that a worker knows of, by their stages."""

    opened: int = -1
    arrived: int = -1
    held: int = -1
    closed: int = -1


class HoldSection(NamedTuple):
    """The operator's part, by what a worker was told of it."""

    held: int = 0
    """The newest order to stand still (odd) or to go on (even)."""


_Section = TypeVar(
    "_Section", BatchSection, PassSection, ViewSection, CheckSection, RoundSection, HoldSection
)


class Statement(NamedTuple):
    """What one worker knows at the end of a backward pass: a section by each who has a say."""

    batch: BatchSection
    made: PassSection
    views: ViewSection
    checks: CheckSection
    rounds: RoundSection
    holds: HoldSection = HoldSection()

    @property
    def values(self) -> tuple[int, ...]:
        """All integers, in the order of the sections."""
        return (*self.batch, *self.made, *self.views, *self.checks, *self.rounds, *self.holds)

    @classmethod
    def of(cls, values: Iterable[int]) -> Statement:
        """The statement with these values."""
        rest = iter(values)

        def take(kind: type[_Section]) -> _Section:
            return kind(*islice(rest, len(kind._fields)))

        return cls(
            batch=take(BatchSection),
            made=take(PassSection),
            views=take(ViewSection),
            checks=take(CheckSection),
            rounds=take(RoundSection),
            holds=take(HoldSection),
        )


WIDTH = sum(
    len(section._fields)
    for section in (
        BatchSection,
        PassSection,
        ViewSection,
        CheckSection,
        RoundSection,
        HoldSection,
    )
)
"""How many integers a statement has."""


class Agreed(NamedTuple):
    """The smallest and the largest statement, value by value, and what each unit and member adds."""

    least: Statement
    most: Statement
    units: tuple[bool, ...]
    """Which units somebody has changed."""
    sizes: tuple[int, ...]
    """By rank, how large each member's own part of the gradient is."""
    shares: tuple[int, ...] = ()
    """By rank, how many samples each member has computed, where that is said."""

    def differ(self, part: Callable[[Statement], object]) -> bool:
        """Whether the workers' statements differ in this part of them."""
        return part(self.least) != part(self.most)


def encode(
    statement: Statement, units: Sequence[bool], sizes: Sequence[int], shares: Sequence[int] = ()
) -> Header:
    """The header for the exchange. Of sizes and shares, a member states its own; the others' are 0."""
    values = np.array(statement.values, dtype=np.int64)
    return np.concatenate([values, -values, np.array([*units, *sizes, *shares], dtype=np.int64)])


def decode(header: Header, *, num_units: int, num_members: int) -> Agreed:
    """The header after the exchange."""
    first_size = 2 * WIDTH + num_units
    first_share = first_size + num_members
    most = Statement.of(header[:WIDTH].tolist())
    least = Statement.of((-header[WIDTH : 2 * WIDTH]).tolist())
    units = tuple(bool(value) for value in header[2 * WIDTH : first_size])
    sizes, shares = header[first_size:first_share].tolist(), header[first_share:].tolist()
    return Agreed(least, most, units, tuple(sizes), tuple(shares))
