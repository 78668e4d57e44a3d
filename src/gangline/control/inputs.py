# SPDX-License-Identifier: Apache-2.0
"""What the control function is told: who joined, how long the last step took, what was measured.

Each event names the workers that it speaks of, in its own order, so that measurements of an older
view, or of some workers only, need no translation by the driver.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import msgspec

from gangline.planning.allocation.bounds import Floats, Shares
from gangline.spec.exchange.structure import Structure
from gangline.spec.outlook import Outlook
from gangline.spec.view import Whole


class WorkersJoined(msgspec.Struct, frozen=True, kw_only=True):
    """These workers are ready to take part. The founders of a run join together."""

    workers: tuple[int, ...]
    """Worker ids, in the order of the ranks that they get."""
    speeds: tuple[float, ...] | None = None
    """How fast they are believed to be, relative to each other; None: alike. What `balanced` begins
    with and `fixed` stays with."""
    max_samples: tuple[int, ...] | None = None
    """The greatest share that fits into each worker's memory; None: no ceiling."""


class WorkersLost(msgspec.Struct, frozen=True, kw_only=True):
    """The members' group is broken: these are gone. Nobody may be gone: then it is made anew."""

    workers: tuple[int, ...]
    reason: str
    """How it was noticed, with numbers."""


class WorkersLeft(msgspec.Struct, frozen=True, kw_only=True):
    """These members want to go. They take part until the view without them holds."""

    workers: tuple[int, ...]


class StepMeasured(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All workers' reports on one step, in step order. NaN seconds where a report is missing."""

    step: int
    view: int
    """The view by whose shares the step was cut."""
    workers: tuple[int, ...]
    samples: Shares
    """The samples that each worker computed."""
    compute_s: Floats
    """From the hand-out of the batch until the last gradient was ready, without waiting."""
    exchange_s: float = math.nan
    """The exchange itself, as far as it is not hidden: the shortest of all workers'."""
    step_s: float = math.nan
    """All that the step took, but for what the loop did between steps: the median of all workers."""
    hop_s: Floats | None = None
    """How long the fastest hop of each worker takes, in any unit that is the same for all; None:
    nobody says, NaN: this worker does not."""
    waited_s: Floats | None = None
    """How long each worker waited for its GPU when all of its pass was queued; NaN: it has none."""
    delay_s: Floats | None = None
    """How much later than the first worker's report each one's arrived; None: it was not noted."""


class StepWeighed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All members have computed one of their first steps, and are about to exchange it."""

    expected: StepMeasured
    """Its exchange is what a probe of the links says."""


class SpareMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that was put out shows how fast it computes now."""

    worker: int
    slowdown: float
    """How many times as long as when it was prepared it takes for the same computation."""


class ExclusionAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants a worker kept out, until somebody wants it back."""

    worker: int
    max_samples: int
    """The greatest share that fits into its memory."""


class ReturnAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants a worker back that is kept out."""

    worker: int


class StructureAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants the members to exchange in another structure, or that it is planned anew."""

    structure: Structure | None
    """None: all in one ring. It stays as it is where there is an outlook."""
    reason: str
    outlook: Outlook | None = None
    """What the structure is to be planned from, from now on; None: it is not planned any more."""


class MetricsMeasured(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the `kqv` allocations need to know, as measured lately."""

    workers: tuple[int, ...]
    operations_per_s: Floats
    memory_bytes: Floats
    """Memory in use."""
    latency_s: Floats
    """Round trip of a small message to the coordinator."""


class PartChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The members are a team: the part of the global batch that is theirs, or their place, changed."""

    global_batch: int
    """Samples per step of this team."""
    whole: Whole
    reason: str


ControlEvent: TypeAlias = (
    WorkersJoined
    | WorkersLost
    | WorkersLeft
    | StepMeasured
    | StepWeighed
    | SpareMeasured
    | ExclusionAsked
    | ReturnAsked
    | StructureAsked
    | PartChanged
    | MetricsMeasured
)
