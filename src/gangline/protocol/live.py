# SPDX-License-Identifier: Apache-2.0
"""What a running job shows of itself: snapshots of it, what they come to over time, and its events.

Sent as one JSON document per line, by `kind`; an event is sent as it is in the log.
"""

from __future__ import annotations

import msgspec

from gangline.spec.event import RoundEnded
from gangline.spec.exchange.structure import Structure


class WorkerNow(msgspec.Struct, kw_only=True):
    """One worker, as it is now. Times are means over its last steps, per step."""

    worker: int
    host: str
    pid: int
    state: str
    """As in `WorkerStatus`."""
    is_connected: bool
    is_member: bool
    """Whether it trains in the present view."""
    team: int = 0
    share: int = 0
    """Its samples of each step."""
    step: int = -1
    samples_per_s: float | None = None
    """What it contributes; None: it has made no step lately."""
    alone_per_s: float | None = None
    """What it would do if it never had to wait or exchange."""
    busy: float | None = None
    """What part of its time it computes, loads and updates, 0 … 1."""
    wait: float | None = None
    """What part of its time it waits: for slower workers, other teams, or the loop between steps."""
    compute_s: float | None = None
    data_s: float | None = None
    exchange_s: float | None = None
    """With waiting."""
    update_s: float | None = None
    cpu: float | None = None
    """Cores that its process uses."""
    memory_bytes: int | None = None
    gpu: float | None = None
    why: str = ""
    """The last decision about it, in words: why it is a spare, say."""
    node: str = ""
    """The name of its node, where the launcher that founded the job gave it one."""


class StepBar(msgspec.Struct, kw_only=True):
    """One step of one worker, or some that were summed up, for a chart of the last steps."""

    worker: int
    step: int
    """The first one."""
    steps: int = 1
    t: float
    """When it ended."""
    data_s: float
    compute_s: float
    exchange_s: float
    """The exchange itself."""
    wait_s: float
    """For slower workers, before it."""
    update_s: float


class Snapshot(msgspec.Struct, kw_only=True, tag_field="kind", tag="snapshot"):
    """A job as it is now."""

    t: float
    run: str
    expected_workers: int
    view: int = -1
    step: int = -1
    epoch: int = -1
    """Counted from 0."""
    epochs: int = 0
    """How many the script means to do; 0: it does not say."""
    sync: str = ""
    """How groups are held together; empty before that is known."""
    structure: Structure | None = None
    """How the members exchange; None: all in one ring."""
    is_paused: bool = False
    may_kill: bool = False
    """Whether an operator may kill workers, to see that the job survives it."""
    samples_per_s: float | None = None
    parts_per_s: float | None = None
    """The sum of the parts: what all members would do if nobody had to wait or exchange."""
    loss: float | None = None
    num_merges: int = 0
    """How often teams were merged, as far as the logs were read."""
    last_merge: RoundEnded | None = None
    workers: list[WorkerNow] = []
    bars: list[StepBar] = []
    """The last steps."""
    skipped_bytes: int = 0
    """How much of the logs was not read, because they grow faster than a viewer can follow."""


class Moment(msgspec.Struct, kw_only=True, array_like=True):
    """A short time of a job: one point of its charts."""

    t: float
    samples_per_s: float | None
    parts_per_s: float | None
    loss: float | None
    shares: dict[int, int]
    """By worker."""


class History(msgspec.Struct, kw_only=True, tag_field="kind", tag="history"):
    """What was before: said once, when somebody begins to look."""

    role: str
    """What who looks may do: `observer` or `operator`."""
    moments: list[Moment]


class Moments(msgspec.Struct, kw_only=True, tag_field="kind", tag="moments"):
    """More points of the charts."""

    moments: list[Moment]


class OrderRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a button of the dashboard sends."""

    order: str
    """`leave`, `sync`, `replan`, …"""
    worker: int = -1
    value: str = ""


class CodeAnswer(msgspec.Struct, kw_only=True):
    """A code that lets one browser in, once."""

    code: str
    role: str
    lasts_s: float
