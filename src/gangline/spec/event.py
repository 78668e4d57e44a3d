# SPDX-License-Identifier: Apache-2.0
"""Events: everything that happens in a run, as it is written to the event log.

One event is one line of JSON with a `kind`, a time `t` (seconds since 1970, the writer's clock)
and, where it concerns one worker, that worker's id. `docs/events.md` lists every kind and field.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes away; a new field or kind does not raise it."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What all events have."""

    t: float


class LogOpened(Event, frozen=True, kw_only=True, tag="log_opened"):
    """The first line of every log file: who writes it, in which schema."""

    schema: int
    run: str
    source: str
    """`launcher`, `coordinator`, `simulator` or `worker N`."""
    host: str
    pid: int
    ahead_s: float = 0.0
    """What must be added to `t` from here on to have the time of the machine that keeps the log; not 0
    in the logs of other machines."""
    part: int = 0
    """Which file of the log this is: one that has grown long goes on in another."""


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    """The launcher is about to start the workers."""

    command: list[str]
    workers: int
    nodes: list[str]
    """The name of each worker's node, in worker order."""
    speeds: list[float]
    """The emulated speed of each worker, after scaling; all 1 when nothing is emulated."""
    scale: float
    """What the asked speeds were multiplied with so that they fit this machine's cores."""
    is_joining: bool = False
    """Whether these workers join a job that was started elsewhere."""


class WorkerReady(Event, frozen=True, kw_only=True, tag="worker_ready"):
    """A worker has passed the hand-shake."""

    worker: int
    device: str
    threads: int
    torch: str
    parameters: int
    transport: str
    samples_per_epoch: int = 0
    """0: not known before an epoch is over."""
    owns: tuple[int, int] = (0, 0)
    """Which of these, start … stop - 1, are its own, and nobody else's; none: all workers read all."""


class GoalSet(Event, frozen=True, kw_only=True, tag="goal_set"):
    """How far the script means to go, as far as it says."""

    worker: int
    epochs: int = 0
    steps: int = 0
    """What `gangline.epochs`, or `gangline.steps`, was given; 0: it was not called."""


class ViewAdopted(Event, frozen=True, kw_only=True, tag="view_adopted"):
    """From `step` on, the batches are cut by these shares."""

    view: int
    step: int
    members: list[int]
    shares: list[int]
    reason: str
    structure: str = ""
    """How the members exchange, in one line; empty where all are in one ring."""
    team: int = 0
    """Which team, where groups train at their own pace."""
    whole: int = 0
    """How many workers there are in all teams; 0: there is one team only."""


class StepDone(Event, frozen=True, kw_only=True, tag="step_done"):
    """One worker finished one step (one optimizer update)."""

    worker: int
    step: int
    epoch: int
    view: int
    samples: int
    """How many samples of the global batch this worker computed."""
    start: int
    stop: int
    """The global batch was the samples start … stop - 1 of the epoch's order."""
    compute_s: float
    """From the hand-out of the batch until its last gradient was ready, without waiting."""
    data_s: float
    """Waiting for the data loader."""
    exchange_s: float
    """From this worker's last gradient until the exchanged gradient was there: exchanging, and
    waiting for slower workers. The smallest of all workers' values is the exchange itself. With
    parameter servers also pushing, waiting for a turn, and pulling."""
    update_s: float
    """From the exchanged gradient to the end of the optimizer's step."""
    team: int = 0
    """Which team, where groups train at their own pace."""
    turn_s: float = 0.0
    """Of `exchange_s`: waiting until the parameter servers' order of updates lets the team go on."""
    parts: list[list[int]] = []
    """Where parts are pulled: those that this worker computed, each as start and stop of the order."""


class StepSummary(Event, frozen=True, kw_only=True, tag="step_summary"):
    """One step of all workers at once, where one `StepDone` each would be too many."""

    step: int
    epoch: int
    view: int
    workers: int
    samples: int
    """The samples of all workers in this step."""
    start: int
    stop: int
    """The global batch was the samples start … stop - 1 of the epoch's order."""
    least_compute_s: float
    median_compute_s: float
    greatest_compute_s: float
    slowest: int
    """The worker that took `greatest_compute_s`."""
    exchange_s: float
    """The exchange itself, without waiting."""
    update_s: float


class StepsDone(Event, frozen=True, kw_only=True, tag="steps_done"):
    """One worker finished these steps, where one `StepDone` each would be too many.

    They follow each other and are alike: of one view and one epoch, each with as many samples, each
    going on where the one before ended. So what every single step used can be told from it.
    """

    worker: int
    step: int
    """The first of them."""
    steps: int
    """How many they are."""
    epoch: int
    view: int
    samples: int
    """How many samples of all these global batches this worker computed."""
    start: int
    stop: int
    """The global batches were the samples start … stop - 1 of the epoch's order."""
    since: float
    """When the first of them began; `t` is when the last one ended."""
    compute_s: float
    data_s: float
    exchange_s: float
    update_s: float
    """The times of all of them together."""
    team: int = 0
    """Which team, where groups train at their own pace."""
    turn_s: float = 0.0
    """Of `exchange_s`: waiting for turns at parameter servers."""


class Logged(Event, frozen=True, kw_only=True, tag="logged"):
    """What the script gave to `gangline.log` in one step; or in several, where steps are summed up."""

    worker: int
    step: int
    """The step; the last one, where there are several."""
    epoch: int
    samples: int
    """How many samples of this worker they speak for: the weight of a mean over workers or steps."""
    values: dict[str, float | None]
    """Means over those samples; None where one is not finite: JSON has no such numbers."""
    steps: int = 1
    """How many steps they speak for."""
    view: int = -1
    """The view of the step: where a step was done again, what was logged in older views is void."""


class Utilisation(Event, frozen=True, kw_only=True, tag="utilisation"):
    """How busy a worker and its machine were, since the last such event."""

    worker: int
    cpu: float
    """Cores that the worker's process used, on average."""
    node_cpu: float
    """What part of all cores of the machine was busy, 0 … 1."""
    memory_bytes: int
    """What the process holds in main memory now."""
    node_memory: float
    """What part of the machine's memory is in use now, 0 … 1."""
    threads: int
    """The threads of the process now."""
    sent_bytes: int
    received_bytes: int
    """Through all of the machine's interfaces, whoever sent them."""
    gpu: float | None = None
    """What part of the time the GPU was busy, 0 … 1; None: there is none, or it does not tell."""
    gpu_memory_bytes: int | None = None
    """What the process holds on its GPU now."""


class UnitsExchanged(Event, frozen=True, kw_only=True, tag="units_exchanged"):
    """When the units of one step's gradient were ready, and exchanged; of some steps only."""

    worker: int
    step: int
    units: list[tuple[int, float, float, float]]
    """Unit, ready, begin and end of its exchange: seconds since the step's batch was handed out."""


class Regrouped(Event, frozen=True, kw_only=True, tag="regrouped"):
    """A worker entered a new group: somebody came, or somebody was lost."""

    worker: int
    view: int
    group: int
    members: list[int]
    step: int
    """The step with which the group goes on. What was reported of it and later ones in older groups
    is void: it was lost with whoever alone had done it."""
    num_behind: int
    """How many members copied the state of the furthest."""
    took_s: float
    """From noticing (or from the agreed step) until this worker could go on."""
    reason: str
    team: int = 0
    """Which team, where groups train at their own pace."""


class StateHandedDown(Event, frozen=True, kw_only=True, tag="state_handed_down"):
    """A spare was sent the state with which an epoch begins, beside the training."""

    worker: int
    """Who sent it."""
    spare: int
    step: int
    """The first step of that epoch."""
    num_bytes: int
    took_s: float
    error: str = ""
    """Why it could not be sent; empty where it was."""


class FaultFired(Event, frozen=True, kw_only=True, tag="fault_fired"):
    """A fault of the run's fault plan is about to happen to this worker."""

    worker: int
    step: int
    """The step that the worker was in."""
    fault: str
    """`kill`, `hang`, `slow` or `cut`."""
    where: str
    """The place in the step; `any` for a fault at a time."""


class GradientNotFinite(Event, frozen=True, kw_only=True, tag="gradient_not_finite"):
    """A worker's own part of a gradient was infinite or not a number, before it was summed."""

    worker: int
    step: int


class GradientTooLarge(Event, frozen=True, kw_only=True, tag="gradient_too_large"):
    """A worker's own part of a gradient was out of all proportion, before it was summed."""

    worker: int
    step: int
    norm: float
    """Of the gradient as a mean over this worker's samples, to a few percent."""
    usual: float
    """The largest norm that it was compared with."""


class EpochDone(Event, frozen=True, kw_only=True, tag="epoch_done"):
    """All batches of an epoch have been handed out and used."""

    worker: int
    epoch: int
    step: int
    samples: int
    """The samples of all workers in this epoch."""
    team: int = 0
    """Which team, where groups train at their own pace."""


class LinkMeasured(Event, frozen=True, kw_only=True, tag="link_measured"):
    """What a worker measured on the way to one of its peers, since its group was made."""

    worker: int
    peer: int
    """The rank of the other worker in the present group."""
    latency_s: float
    """One way; 0 until something was measured."""
    bytes_per_s: float
    """0 until something large enough was moved."""
    bytes: int
    """What was sent and received."""
    corrupt: int
    """Segments whose checksum was wrong."""


class PacingMeasured(Event, frozen=True, kw_only=True, tag="pacing_measured"):
    """How well an emulated worker hit the speed that was asked of it."""

    worker: int
    asked: float
    achieved: float
    cpu_s: float
    slept_s: float


class Decision(Event, frozen=True, kw_only=True, tag="decision"):
    """Something was decided: what, why, and the numbers that led to it."""

    what: str
    reason: str
    numbers: Mapping[str, float | None]
    """None where a number is not finite: JSON has no such numbers."""


class PlanMade(Event, frozen=True, kw_only=True, tag="plan_made"):
    """How the members should exchange, how long a step should take then, and why."""

    step: int
    """The last step that it was made from; -1: it was asked for from outside."""
    chosen: str
    """The name of the structure, as in the plan's alternatives."""
    structure: str
    """How the members exchange, in one line; empty where all are in one ring."""
    bound: str
    """`compute-bound`, `memory-bound` or `communication-bound`."""
    nodes: list[str]
    shares: list[int]
    """What each node computes of a batch, if the plan has its way."""
    compute_s: float
    exchange_s: float
    hidden_s: float
    """The part of the exchange that goes on while nodes compute."""
    other_s: float
    """Loading and updating, as measured before."""
    step_s: float
    """The predicted step in `structure`, with the shares as they are."""
    reasons: list[str]
    hint: str = ""
    """What would be faster and is left to people: to do without some nodes."""


class SamplesLeased(Event, frozen=True, kw_only=True, tag="samples_leased"):
    """A team that trains at its own pace was given samples of the epoch."""

    team: int
    epoch: int
    number: int
    """Which of the team's leases in this epoch; together, in order, they are the team's own order."""
    start: int
    stop: int
    """The samples start … stop - 1 of the epoch's order."""


class LeaseReturned(Event, frozen=True, kw_only=True, tag="lease_returned"):
    """A team was lost before these samples were merged: others will use them."""

    team: int
    epoch: int
    start: int
    stop: int


class SamplesGone(Event, frozen=True, kw_only=True, tag="samples_gone"):
    """A worker was lost that had data of its own: nobody uses it in its place, from here on."""

    worker: int
    epoch: int
    """In which it was lost: what was merged of it before stays."""
    start: int
    stop: int
    """Where its samples are in the union of all workers' data."""


class RoundEnded(Event, frozen=True, kw_only=True, tag="round_ended"):
    """The teams were merged; or not, where one of them was lost meanwhile."""

    number: int
    epoch: int
    is_committed: bool
    is_whole: bool
    """Whether all teams waited for it."""
    is_all: bool = True
    """Whether all teams were merged; else those of one group, and their samples do not count yet."""
    offsets: dict[str, int]
    """Per team: how many samples of its order were in the copy that it brought."""
    took_s: float
    exchange_s: float
    """How long the leaders exchanged, of the slowest."""
    busy_s: float
    """How long it kept a team from computing, of the one it kept longest."""
    drift: float
    """How far a team's copy was from the mean, by how far the mean has moved since the last round."""
    sent_bytes: int = 0
    """By all leaders together, to each other."""
    interval_s: float
    """`flexible`: the time until the next one."""
    sync: str
    reason: str


class UpdateApplied(Event, frozen=True, kw_only=True, tag="update_applied"):
    """An update got its place in the sequence of the parameter servers."""

    number: int
    """Its place."""
    epoch: int
    teams: tuple[int, ...]
    """Whose pushes it is made of."""
    clocks: tuple[int, ...]
    weights: tuple[float, ...]
    """How much each of them counts."""
    offsets: tuple[int, ...]
    """Up to where in each team's order its samples count."""
    staleness: int
    """How many updates were applied since the parameters were read that it was computed from."""


class UpdateVoided(Event, frozen=True, kw_only=True, tag="update_voided"):
    """What a team has computed counts nothing, and its samples are free again."""

    team: int
    epoch: int
    start: int
    stop: int
    """The part of the team's own order."""
    clock: int
    """Of a push that came too late; -1: its effect was lost with a server."""


class ServersUsed(Event, frozen=True, kw_only=True, tag="servers_used"):
    """What one worker has moved to and from parameter servers since it said so last.

    Told at the end of each epoch. What a worker holds itself it need not move.
    """

    worker: int
    epoch: int
    pushed_bytes: int
    """Gradients, or changes, that it has sent to other workers that hold the parameters."""
    pulled_bytes: int
    """Parameters, and the optimizer's state, that it has got from them."""
    num_pulls: int
    """How often it has pulled."""
    num_fetches: int = 0
    """How often it has fetched rows that a batch needed: `rows=ondemand`."""
    team: int = 0
    """The team that it is in."""


class EventsLost(Event, frozen=True, kw_only=True, tag="events_lost"):
    """Events that this log should hold and does not: the disk was full, or the folder gone."""

    source: str
    """Whose events they were, as in `LogOpened`."""
    count: int
    """How many, since the last such event."""
    reason: str
    since: float = 0.0
    """When the first of them happened."""
    first_step: int = -1
    last_step: int = -1
    """The steps among them, from and to; -1: none."""


class WorkerEnded(Event, frozen=True, kw_only=True, tag="worker_ended"):
    """A worker process ended."""

    worker: int
    exit_code: int | None
    signal: str | None
    reason: str
    output: str = ""
    """The end of what it printed, of one that failed on a machine that joined."""


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    """The whole run ended."""

    status: str
    """`done`, `failed` or `interrupted`."""
    reason: str
    wall_s: float
    is_joining: bool = False
    """Whether only the workers of a machine that joined have ended."""


AnyEvent = (
    LogOpened
    | RunStarted
    | WorkerReady
    | GoalSet
    | ViewAdopted
    | StepDone
    | Regrouped
    | StateHandedDown
    | StepSummary
    | StepsDone
    | Logged
    | Utilisation
    | UnitsExchanged
    | FaultFired
    | GradientNotFinite
    | GradientTooLarge
    | EpochDone
    | LinkMeasured
    | PacingMeasured
    | Decision
    | PlanMade
    | SamplesLeased
    | LeaseReturned
    | RoundEnded
    | SamplesGone
    | UpdateApplied
    | UpdateVoided
    | ServersUsed
    | EventsLost
    | WorkerEnded
    | RunEnded
)
