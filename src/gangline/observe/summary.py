# SPDX-License-Identifier: Apache-2.0
"""What the report says about a run, as data: this is also what `gangline report --json` prints.

Times are in seconds. Where a number could not be known, it is None.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class TimeSpent(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker's time went, over the steady steps."""

    compute_s: float = 0.0
    data_s: float = 0.0
    exchange_s: float = 0.0
    """The exchange itself."""
    wait_s: float = 0.0
    """In the exchange, until the last worker was ready."""
    update_s: float = 0.0
    other_s: float = 0.0
    """What the loop did between its optimizer step and the next batch."""

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.busy_s + self.exchange_s + self.wait_s + self.other_s

    @property
    def busy_s(self) -> float:
        """What the worker did for its own share: data, computing, updating."""
        return self.compute_s + self.data_s + self.update_s


class Pacing(msgspec.Struct, frozen=True, kw_only=True):
    """How well an emulated worker hit its speed."""

    asked: float
    achieved: float
    slept_s: float


class WorkerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part in the run."""

    worker: int
    node: str
    device: str
    num_steps: int
    num_steady_steps: int
    samples: int
    share: float | None
    """The median of its samples per steady step."""
    spent: TimeSpent
    fixed_s: float | None
    per_sample_s: float | None
    pacing: Pacing | None
    waited_for_steps: int
    """In how many steady steps it was ready last."""
    caused_wait_s: float
    """How long all others together waited for it."""
    exit: str
    """How its process ended, where the log says so."""


class RoundsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How teams that train at their own pace were merged."""

    modes: list[str]
    """How they were held together, in the order of use."""
    num_committed: int
    num_failed: int
    """Those that counted nothing, because somebody was lost meanwhile."""
    took_median_s: float | None
    """Of those in the background, from their opening to their end."""
    sent_bytes: int
    """By all leaders together."""


class ServedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What parameter servers did."""

    num_updates: int
    staleness: dict[int, int]
    """How many updates were so stale."""
    staleness_median: int
    staleness_p90: int
    staleness_most: int
    num_dropped: int
    """Pushes that came too late."""
    dropped_samples: int
    num_lost: int
    """Pushes whose effect was lost with a server."""
    lost_samples: int
    holders: str
    """Who holds which shard, at the end."""
    turn_s: float
    """How long all workers together waited for turns."""
    pushed_bytes: int = 0
    pulled_bytes: int = 0
    """What all workers together have sent to others that hold parameters, and got from them."""
    num_pulls: int = 0
    """How often all workers together have pulled."""
    num_fetches: int = 0
    """How often they have fetched rows that a batch needed."""


class ViewSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one allocation."""

    view: int
    team: int = 0
    """Whose view it is, where groups train at their own pace."""
    step: int
    members: list[int]
    shares: list[int]
    reason: str
    num_steps: int
    """Steady steps in this view."""
    throughput: float | None
    efficiency: float | None


class DecisionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was decided, and why."""

    at_s: float
    """Since the start of the run."""
    what: str
    reason: str
    numbers: Mapping[str, float | None]


class PlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The last plan of the run, and what came of it."""

    chosen: str
    structure: str
    """How the members exchange, in one line; empty where all are in one ring."""
    bound: str
    step: int
    """The last step that it was made from."""
    predicted_s: float
    measured_s: float | None
    """The median of the steady steps after it that were exchanged as it says."""
    num_steps: int
    """How many those are."""
    error: float | None
    """Predicted over measured, less 1."""
    reasons: list[str]
    hint: str
    """What would be faster and is left to people; empty: nothing."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the report says."""

    run: str
    status: str
    """`done`, `failed`, `interrupted`, or `unknown`: still running, or killed."""
    reason: str
    num_steps: int
    num_epochs: int
    num_teams: int = 1
    """Groups that train at their own pace; 1: all workers step together."""
    rounds: RoundsSummary | None = None
    """How they were merged; null where all workers step together."""
    served: ServedSummary | None = None
    """What parameter servers did; null where there are none."""
    samples: int
    wall_s: float
    num_pauses: int = 0
    paused_s: float = 0.0
    """How long the job stood still because an operator asked for it: no part of any step."""
    skipped_steps: list[int]
    """First and last step of the warm-up, which the steady state leaves out; empty for none."""
    num_steady_steps: int
    throughput: float | None
    """Samples per second, over the steady steps."""
    step_mean_s: float | None = None
    step_median_s: float | None
    step_p90_s: float | None
    efficiency: float | None
    """Compute-only optimum over measured time, over the steady steps."""
    optimum_s: float | None
    """The compute-only optimum of a step of median size."""
    optimum_basis: str
    """What is known of the workers' costs, in words."""
    wait_s: float
    """Time lost waiting, of all workers together."""
    wait_fraction: float | None
    """Its part of all workers' time."""
    workers: list[WorkerSummary]
    views: list[ViewSummary]
    decisions: list[DecisionSummary]
    plan: PlanSummary | None
    num_missing_events: int = 0
    """Events that the logs lack: where there are some, steps and samples are those that are known."""
    warnings: list[str]
