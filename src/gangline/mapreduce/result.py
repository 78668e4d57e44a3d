# SPDX-License-Identifier: Apache-2.0
"""What comes of a loop: its value, its failures, and how the work was spread."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from gangline.scheduling.measures import imbalance


class Part(NamedTuple):
    """What the function returned for the rows start … stop − 1."""

    start: int
    stop: int
    value: Any


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk for which there is no result."""

    start: int
    stop: int
    """The rows start … stop − 1."""
    error: str


class Mapped(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a loop, and how it went."""

    value: Any
    """The combined results; None where every chunk failed."""
    failures: tuple[Failure, ...]
    """With `on_error="collect"`: chunks that failed, the first ones if they are very many."""
    num_failed: int
    """How many chunks failed."""
    scheme: str
    layout: str
    victim: str
    decisions: tuple[str, ...]
    """What `scheme="expert"` or `"sarsa"` decided for this loop, and why."""
    workers: int
    devices: tuple[str, ...]
    """What each worker computes on, with `devices=`; else empty texts. Of a job: none."""
    chunks_of: tuple[int, ...]
    """How many chunks each worker did."""
    rows_of: tuple[int, ...]
    """How many rows each worker did."""
    busy_s: tuple[float, ...]
    """The seconds that each worker spent in the function."""
    overhead_s: float
    """The seconds that all workers together spent on asking for chunks."""
    stolen: int
    """How many chunks came from another worker's queue."""
    lost: dict[int, str]
    """Processes that were killed or given up, and why; others have done their rows."""
    seconds: float

    @property
    def chunks(self) -> int:
        """How many chunks were done."""
        return sum(self.chunks_of)

    @property
    def imbalance(self) -> float:
        """0 where all workers were busy equally long, 1 where one did everything.

        (max − mean) / max · P / (P − 1), over the seconds that each of P workers was busy.
        """
        return imbalance(self.busy_s)

    def __repr__(self) -> str:
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        stolen = f", {self.stolen} stolen" if self.stolen else ""
        lines = [
            f"Mapped({sum(self.rows_of)} rows in {self.chunks} chunks{failed}{stolen}, {self.scheme}, "
            f"{self.workers} workers, {self.seconds:.3f} s, imbalance {self.imbalance:.0%})"
        ]
        lines += [f"  lost: worker {one} ({why})" for one, why in sorted(self.lost.items())]
        lines += [f"  failed: {failure.error}" for failure in self.failures[:5]]
        return "\n".join(lines)
