# SPDX-License-Identifier: Apache-2.0
"""What tells the usual from the unusual: one number per worker and step in, a verdict each out.

The same protocol judges three things, each by a detector of its own: what a sample costs a worker,
how long a hop of the exchange takes, and how late a worker's reports arrive.

A detector is a value. It is never changed: observing gives the next one, so that the same
measurements always lead to the same decisions. What it may remember of the workers, it keeps in
arrays with one entry per worker.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from gangline.planning.allocation.bounds import Floats, Shares
from gangline.spec.errors import UsageError


class Verdicts(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a detector makes of a step. One entry per worker in each array.

    A worker that was slow and is not any more has recovered.
    """

    slow: NDArray[np.bool_]
    measured: Floats
    """What is held against the usual: the step's number, or what stands for the last ones."""
    usual: Floats
    """What is usual for the worker; NaN while that is not known."""

    @property
    def factor(self) -> Floats:
        """How many times the usual was measured; 1 where nothing is known."""
        known = np.isfinite(self.usual) & np.isfinite(self.measured) & (self.usual > 0)
        return np.where(known, self.measured / np.where(known, self.usual, 1.0), 1.0)


class Detector(Protocol):
    """Tells which workers are slower than usual. Made without arguments, it knows nobody."""

    def observe(self, values: Floats) -> tuple[Self, Verdicts]:
        """The detector after one step, and its verdicts.

        `values` are above 0, and NaN for a worker that was not measured.
        """
        ...

    def joined(self, count: int) -> Self:
        """The detector with so many more workers, of which nothing is known."""
        ...

    def selected(self, places: Shares) -> Self:
        """The detector of some of the workers, in the order of `places`."""
        ...


_METHODS = ("observe", "joined", "selected")


def check_detector(kind: Any, *, name: str) -> Detector:
    """The detector that `kind` makes; UsageError where that is none."""
    try:
        made = kind()
    except TypeError as error:
        raise UsageError(
            f"the detector {name} cannot be made without arguments ({error}): it must be a class "
            "whose fields all have defaults"
        ) from error
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise UsageError(
            f"the detector {name} has no {', '.join(missing)}: a detector needs observe(values), "
            "joined(count) and selected(places), see gangline.control.detection.Detector"
        )
    detector: Detector = made
    return detector
