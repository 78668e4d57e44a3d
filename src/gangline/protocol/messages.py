# SPDX-License-Identifier: Apache-2.0
"""What workers and the coordinator say to each other: msgpack over one WebSocket per worker.

The training loop never waits for an answer while it trains: measurements go out, views come in, and
the workers agree among themselves when a view takes effect.
"""

from __future__ import annotations

import msgspec

from gangline.spec.exchange.address import WireAddress
from gangline.spec.exchange.structure import Structure
from gangline.spec.serving import Entry, Serving
from gangline.spec.sync import IN_STEP, Sync
from gangline.spec.view import View

PROTOCOL_VERSION = 4
MAX_MESSAGE_BYTES = 1 << 20
MAX_SUMMED = 32768
"""So many values at once can be added up over all teams."""
MAX_LOGGED = 64
"""So many values a script may log in one step, and between two steps at once."""
MAX_LOGGED_NAME = 100
"""The characters of such a value's name."""
MAX_TOLD_BYTES = 64 << 10
"""What a team can tell the others beside them; a message to a team carries that of all."""


def is_logged_name(name: str) -> bool:
    """Whether a value may be called that: it is shown on terminals, and sent as UTF-8."""
    return 0 < len(name) <= MAX_LOGGED_NAME and name.isprintable()


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What all messages have: a kind."""


# --- from a worker ---------------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """The first message of a connection."""

    protocol: int
    run: str
    worker: int
    """The number that the launcher gave it; -1 lets the coordinator give it one."""
    host: str
    pid: int
    address: WireAddress
    """Where this worker's peers reach it."""
    is_elastic: bool = True
    """Whether its transport lets others come and go."""
    replaces: int = -1
    """The worker in whose place it was started; -1: nobody's."""
    machine: str = ""
    """Whose launcher sends its event log (`machine_name`); empty: nobody does."""


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """The worker has prepared its model and waits for its first view."""

    global_batch: int
    minimum: int
    allocation: str
    shares: tuple[float, ...] | None
    """Fixed shares, in any unit, one per worker; None leaves them to the allocation."""
    max_samples: int | None
    """The most samples this worker can hold at once."""
    seed: int
    attempt: int = 0
    """A founder's: which gathering it has shaken hands in."""
    structure: Structure | None = None
    """How the workers shall exchange; None: all in one ring."""
    traits: dict[str, str] = {}
    """What it trains, in short: a newcomer's must be those of the founders."""
    gradient_bytes: int = 0
    """What is exchanged per step."""
    sync: Sync = IN_STEP
    """How tightly groups of workers are held together."""
    must_stay: str = ""
    """Why groups of this job cannot train at their own pace; empty where they can."""
    must_update: str = ""
    """Why parameter servers cannot make its updates; empty where they can."""
    only_serves: bool = False
    """Whether it holds parameters and computes nothing, where there are parameter servers."""
    weight: float = 0.0
    """How fast it was in the team that it comes from, in any unit; 0: that is not known."""
    keeps_checkpoints: bool = False
    """Whether the script has a folder for checkpoints."""
    serving_bytes: int = 0
    """What a parameter server of all parameters would hold, with the optimizer's state; 0: unknown."""
    free_bytes: int = 0
    """Memory that it has room for; 0: that is not known."""
    owns: tuple[int, int] | None = None
    """Where in the union of all workers' data its own samples are, start … stop - 1, where each worker
    has its own and nobody else can read them; None: all workers read the same."""


class Measured(Message, frozen=True, kw_only=True, tag="measured"):
    """What one step cost this worker."""

    step: int
    view: int
    samples: int
    compute_s: float
    exchange_s: float = 0.0
    """From the last gradient until the exchanged one was there, waiting for others included."""
    other_s: float = 0.0
    """Loading and updating; by parameter servers, with all waiting for them."""
    hops: tuple[tuple[int, float], ...] = ()
    """How many seconds a MiB takes to peers, by their rank, where that is known."""
    waited_s: float | None = None
    """How long it waited for its GPU when all of its pass was queued; None: it has none to wait for."""
    team: int = -1
    """The team that it is said of; -1: that of all workers, who are in step."""


class Noted(Message, frozen=True, kw_only=True, tag="noted"):
    """What this worker's script has logged in one step."""

    step: int
    samples: int
    """How many samples of this worker the values are means over."""
    values: dict[str, float]
    view: int = -1
    """The view of the step; -1: they were logged between steps."""


class Weighed(Message, frozen=True, kw_only=True, tag="weighed"):
    """What one of the first steps has cost this worker before it is exchanged, and will cost then."""

    expected: Measured
    """Its exchange is what a probe of the links says."""


class Shown(Message, frozen=True, kw_only=True, tag="shown"):
    """What a worker that waits outside of the view shows: how fast it computes now."""

    slowdown: float
    """How many times as long as when it was prepared the same computation takes."""


class StateOffered(Message, frozen=True, kw_only=True, tag="state_offered"):
    """A member has kept the state with which an epoch begins, for spares that fetch it."""

    step: int
    """The first step of that epoch."""
    spares: tuple[int, ...]


class Metrics(Message, frozen=True, kw_only=True, tag="metrics"):
    """What this worker measured of itself lately."""

    operations_per_s: float
    memory_bytes: float
    latency_s: float


class PartAsked(Message, frozen=True, kw_only=True, tag="part_asked"):
    """A worker wants another part of the present global batch, where parts are pulled."""

    group: int
    """By whose members it is pulled."""
    epoch: int
    step: int
    start: int
    stop: int
    """What is pulled of this step, by all members: start … stop - 1 of the epoch's order."""
    number: int
    """How many parts of it this worker has got. Asked again, it is given the same part again."""
    samples: int = 0
    compute_s: float = 0.0
    """What it has computed since it asked for the last time, and how long that took."""


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Asks for an echo, to measure the way to the coordinator and back."""

    sent_s: float
    waiting_s: float = 0.0
    """How long the worker has been in its present exchange; 0: it is in none."""


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """An exchange of this group failed here; the worker waits for a view with another group."""

    group: int
    """See `founders_group` for one that failed before there was a view."""
    step: int
    error: str
    position: tuple[int, ...] = ()
    """How far the worker has come (`Position`); empty before there is a view."""
    call: str = ""
    """What it was doing, for people: `backward()`, `gangline.mean()`."""
    is_mismatch: bool = False
    """Whether others do something else at the same time: their loops differ."""


class CheckpointWritten(Message, frozen=True, kw_only=True, tag="checkpoint_written"):
    """A checkpoint is on disk; the worker asks whether it may become the latest."""

    step: int
    group: int
    """The group that the worker was in when the copy was taken."""


class Probed(Message, frozen=True, kw_only=True, tag="probed"):
    """Which of those that a probe named can be reached from here."""

    number: int
    reached: tuple[int, ...]


class Exhausted(Message, frozen=True, kw_only=True, tag="exhausted"):
    """The worker ran out of memory, and its process ends; who takes its place may have so much."""

    max_samples: int


class Leaving(Message, frozen=True, kw_only=True, tag="leaving"):
    """The worker wants to go. It takes part until a view without it holds."""


class Finished(Message, frozen=True, kw_only=True, tag="finished"):
    """The worker's script is over. It waits to be released, or for a view with somebody who is back."""

    group: int
    """The group that it is in."""


FINISHED, LEFT, BROKEN = "done", "left", "failed"
"""Why a worker says goodbye: its script came to its end, it was asked to leave, or it ends with an
error."""


class Goodbye(Message, frozen=True, kw_only=True, tag="goodbye"):
    """The worker leaves on purpose."""

    reason: str
    """One of the above, or words for people."""
    position: tuple[int, ...] = ()
    """How far it has come, where its script ended by itself and nobody had asked it to leave."""


class Saved(Message, frozen=True, kw_only=True, tag="saved"):
    """The worker has written a file by `torch.save`, which others may write, too."""

    path: str
    inode: int
    is_main: bool


class LeaseAsked(Message, frozen=True, kw_only=True, tag="lease_asked"):
    """The worker's team wants samples. All its members ask, and are told the same."""

    epoch: int
    number: int
    """Which of the team's leases in this epoch, from 0."""
    length: int
    """How many samples the epoch has."""
    team: int = -1
    """The team that it is said of; -1: that of all workers, who are in step."""


class Reached(Message, frozen=True, kw_only=True, tag="reached"):
    """The worker's team has come to a place at which all teams are to be merged, and waits."""

    epoch: int
    offset: int
    """How many samples of the epoch the team has used."""
    step: int
    is_end: bool
    """Whether nothing is left for it in this epoch."""
    after: int = -1
    """The newest round that the team has taken part in."""
    closing: int = -1
    """The round with which the last epoch ended that the team knows to be over."""
    length: int = 0
    """How many samples the epoch has; of workers that have trained in step so far, and are to part."""
    team: int = -1
    """The team that it is said of; -1: that of all workers, who are in step."""


class RoundDone(Message, frozen=True, kw_only=True, tag="round_done"):
    """All members of the worker's team hold the mean of a round."""

    number: int
    epoch: int
    offset: int
    """How many samples of the epoch the team had used when its copy was taken."""
    busy_s: float
    """How long the round has kept the team from computing."""
    exchange_s: float
    """How long the leaders exchanged."""
    drift: float
    """How far the team's copy is from the mean, by how far the mean has moved since the last round."""
    sent_bytes: int
    team: int = -1
    """The team that it is said of; -1: that of all workers, who are in step."""


class RoundFailed(Message, frozen=True, kw_only=True, tag="round_failed"):
    """The leaders' exchange failed."""

    number: int
    error: str
    team: int = -1
    """The team that it is said of; -1: that of all workers, who are in step."""


class Pushed(Message, frozen=True, kw_only=True, tag="pushed"):
    """The worker's team has pushed an update to the parameter servers, and wants to go on."""

    clock: int
    """The one that it was given with its last turn; -1: it has pushed nothing yet."""
    epoch: int
    start: int
    stop: int
    """The samples of its own order that the update speaks for."""
    known: int
    """The first entry of the servers' sequence that it was not told of; it may have pulled more."""
    read: int
    """The first entry that is not in the parameters that the update was computed with."""
    serving: int = -1
    """The order of servers that it has pushed to."""
    skipped: int = 0
    """How many of these samples have no gradient in it, because their step was skipped."""
    weight: float | None = None
    """How much its samples count together; None: as many as they are."""
    is_sum: bool = False
    """Whether it is the gradient of a sum, so that updates are added up as they are."""
    team: int = -1
    """The team that it is said of."""


class Unserved(Message, frozen=True, kw_only=True, tag="unserved"):
    """A parameter server does not answer this worker, or a shard is held by nobody any more."""

    number: int
    """Of the `Serving` that it went by."""
    shard: int = -1
    """The shard that it gets no answer about; -1: none, it only says what it has."""
    known: int = -1
    """The first entry that is not in the pull that this worker has kept."""
    error: str = ""
    team: int = -1
    """The team that it is said of."""


class Holds(Message, frozen=True, kw_only=True, tag="holds"):
    """This worker holds these shards, with all that was acknowledged of them."""

    number: int
    """Of the `Serving` that it goes by."""
    shards: tuple[int, ...]
    team: int = -1
    """The team that it is said of."""


class Told(Message, frozen=True, kw_only=True, tag="told"):
    """A team's part of a sum over all teams, outside of the epochs."""

    epoch: int
    call: int
    """Which call since the last batch."""
    values: tuple[float, ...]
    name: str = ""
    """The call, for people: all teams must make the same."""
    payload: bytes = b""
    """What is not added up, but brought to all teams as it is."""
    team: int = -1
    """The team that it is said of; -1: that of all workers, who are in step."""


class Knocked(Message, frozen=True, kw_only=True, tag="knocked"):
    """How long peers took to accept a connection."""

    number: int
    times_s: tuple[float, ...]
    """In the order of the question; -1 where a peer did not accept."""


class LinkServed(Message, frozen=True, kw_only=True, tag="link_served"):
    """A peer may measure the way to this worker, at this port."""

    number: int
    port: int


class LinkFound(Message, frozen=True, kw_only=True, tag="link_found"):
    """What lies between this worker and a peer."""

    number: int
    latency_s: float = 0.0
    """One way."""
    num_bytes: int = 0
    """Of a large message."""
    there_s: tuple[float, ...] = ()
    """Large messages, with a tiny answer."""
    back_s: tuple[float, ...] = ()
    """The other way."""
    error: str = ""
    """Why there is nothing, where there is nothing."""


FromSurveyor = Knocked | LinkServed | LinkFound
"""What workers answer that are asked to measure links."""


# --- from the coordinator --------------------------------------------------------------------------


class Gathered(Message, frozen=True, kw_only=True, tag="gathered"):
    """All expected workers are there: this is how they reach each other, in rank order.

    Who comes later is told who takes part already; it is not one of them until it is in a view.
    """

    worker: int
    """The number of the worker that this is told to."""
    members: tuple[int, ...]
    addresses: tuple[WireAddress, ...]
    attempt: int = 0
    """How often the founders had to gather again, because one was lost before the first view."""


class ViewPublished(Message, frozen=True, kw_only=True, tag="view_published"):
    """There is a new view. The members agree by themselves from which step on it holds."""

    view: View
    addresses: tuple[WireAddress, ...]
    """How the members reach each other, in rank order."""
    seed: int
    """The seed of the epochs' order, for who comes later."""
    is_recovery: bool = False
    """The group before it is broken: leave it at once."""
    spares: dict[int, WireAddress] = {}
    """How those are reached that wait outside of the view, by worker."""
    pulled: str = ""
    """The allocation by which parts of each global batch are pulled; empty: each has its share."""


class FetchState(Message, frozen=True, kw_only=True, tag="fetch_state"):
    """A member has the state with which an epoch begins for the spare that this is told to."""

    source: int
    address: WireAddress
    """Where that member is reached."""
    step: int


class CheckpointAnswered(Message, frozen=True, kw_only=True, tag="checkpoint_answered"):
    """Whether a checkpoint is part of the job's history, or of a branch that was abandoned."""

    step: int
    is_agreed: bool
    reason: str


class Dismissed(Message, frozen=True, kw_only=True, tag="dismissed"):
    """The worker may go, for good: when the newest view without it holds, or its group is lost."""


class Released(Message, frozen=True, kw_only=True, tag="released"):
    """The worker's script is over, and nobody needs its state any more."""


class Knock(Message, frozen=True, kw_only=True, tag="knock"):
    """Asks how long these peers take to accept a connection."""

    number: int
    addresses: tuple[WireAddress, ...]


class ServeLink(Message, frozen=True, kw_only=True, tag="serve_link"):
    """Asks to let one peer measure the way to this worker."""

    number: int


class MeasureLink(Message, frozen=True, kw_only=True, tag="measure_link"):
    """Asks to measure the way to a peer, which serves at this address."""

    number: int
    address: WireAddress


class Probe(Message, frozen=True, kw_only=True, tag="probe"):
    """Asks which of these workers can be reached."""

    number: int
    workers: tuple[int, ...]
    addresses: tuple[WireAddress, ...]


class LeaseGranted(Message, frozen=True, kw_only=True, tag="lease_granted"):
    """The team may use the samples start … stop - 1 of the epoch; none are left where these agree."""

    epoch: int
    number: int
    start: int
    stop: int


class PartGiven(Message, frozen=True, kw_only=True, tag="part_given"):
    """A part of a global batch, for who has asked for it."""

    group: int
    epoch: int
    step: int
    number: int
    start: int
    stop: int
    """Empty: nothing is left."""
    void: str = ""
    """Why nothing can be handed out in this group any more: its members must make another one."""


class RoundOpened(Message, frozen=True, kw_only=True, tag="round_opened"):
    """The teams are to be merged: their leaders exchange, at the next step that all members know it."""

    number: int
    group: int
    """The number of the leaders' group: rounds of one group share connections."""
    leaders: tuple[int, ...]
    addresses: tuple[WireAddress, ...]
    is_whole: bool = False
    """All teams wait for it."""
    is_end: bool = False
    """It ends an epoch: optimizer state is merged, too."""
    level: int = 0
    """Which relaxed level it merges, from the lowest; a merge of a higher one is one of those below."""
    compression: str = "none"
    """How the leaders shorten what they send."""


class RoundClosed(Message, frozen=True, kw_only=True, tag="round_closed"):
    """A round is over: its mean is taken by all teams, or by none."""

    number: int
    is_committed: bool
    sync: Sync
    """How the teams are held together from here on."""


class EpochClosed(Message, frozen=True, kw_only=True, tag="epoch_closed"):
    """All teams have used what they were given of the epoch, and are merged."""

    epoch: int
    step: int
    """The number of the next step, for all teams."""
    round: int
    """The round that merged them."""
    is_complete: bool
    """Whether every sample was used. Else there are some to be had: of a team that was lost, or
    because the teams were stopped."""
    teams: tuple[int, ...] = ()
    """Those that were merged. Who hears of it and was in none of them was left out."""
    regroup: Sync | None = None
    """Every worker is in another team from here on, and this is how those are held together."""


END = -2
LAG = 256
"""A server that takes another one's place lacks fewer entries: it gets them with every push."""


class Served(Message, frozen=True, kw_only=True, tag="served"):
    """Who holds which part of the parameters from here on."""

    serving: Serving


class Turn(Message, frozen=True, kw_only=True, tag="turn"):
    """The team may go on: it pulls the parameters as they are after these entries."""

    clock: int
    """Of the update that it computes next."""
    upto: int
    """The first entry that is not in the sequence yet."""
    entries: tuple[Entry, ...]
    """Those that the team did not know, up to there."""
    serving: int
    """The order of servers that holds when this is said."""
    epoch: int = -1
    pushed: int = -1
    """The push that this answers: its clock; END: the epoch is over, and this is what came of it."""
    takes_state: bool = False
    """Whether these servers end here: everybody takes the optimizer's state, as it trains otherwise."""
    team: int = -1
    """Whose turn it is: a worker may hear that of the team it was in, and of the one it enters."""


class Heard(Message, frozen=True, kw_only=True, tag="heard"):
    """The sum over all teams of what they told."""

    epoch: int
    call: int
    values: tuple[float, ...]
    payloads: tuple[bytes, ...] = ()
    """What each team told beside its values."""


class Stopped(Message, frozen=True, kw_only=True, tag="stopped"):
    """The job ends with an error for everybody: its workers' loops differ."""

    reason: str
    places: str = ""
    """Who is where, in short; empty where that is not the difference."""
    hint: str = ""
    """What is likely; the reason has it, too."""


class SavedBy(Message, frozen=True, kw_only=True, tag="saved_by"):
    """Who has written a file by `torch.save`, where not all of them may."""

    path: str
    workers: tuple[int, ...]
    """Empty: nobody but who asks, or only the main worker."""


class Held(Message, frozen=True, kw_only=True, tag="held"):
    """Whether the job is to stand still between two steps: at an odd number, until the next one."""

    number: int
    """How often that has changed. The members agree on the newest that one of them knows."""


class SaveAsked(Message, frozen=True, kw_only=True, tag="save_asked"):
    """A checkpoint is wanted now, whether one is due or not."""


class Pong(Message, frozen=True, kw_only=True, tag="pong"):
    """The echo of a ping."""

    sent_s: float


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """The coordinator will not have this worker, or what it asked for; the reason is for people."""

    reason: str
    is_left_behind: bool = False
    """The job has ended without this worker, which had trained in it."""
    is_dissolved: bool = False
    """Whoever started the job has ended it: the worker does not train on alone."""


FromWorker = (
    Hello
    | Ready
    | Measured
    | Noted
    | Weighed
    | Shown
    | StateOffered
    | Metrics
    | PartAsked
    | Ping
    | Failed
    | Probed
    | Knocked
    | LinkServed
    | LinkFound
    | CheckpointWritten
    | Exhausted
    | Leaving
    | Finished
    | Goodbye
    | Saved
    | LeaseAsked
    | Reached
    | RoundDone
    | RoundFailed
    | Pushed
    | Unserved
    | Holds
    | Told
)
FromTeam = LeaseAsked | Reached | RoundDone | RoundFailed | Pushed | Unserved | Holds | Told
"""What only workers say whose groups train at their own pace."""
OfTeam = Measured | FromTeam
"""What is said of the team that the worker was in when it said it; it may be in another one by now."""
FromCoordinator = (
    Gathered
    | ViewPublished
    | FetchState
    | CheckpointAnswered
    | Dismissed
    | Released
    | Probe
    | Knock
    | ServeLink
    | MeasureLink
    | Pong
    | Refused
    | Stopped
    | SavedBy
    | Held
    | SaveAsked
    | PartGiven
    | LeaseGranted
    | RoundOpened
    | RoundClosed
    | EpochClosed
    | Served
    | Turn
    | Heard
)
ToTeam = LeaseGranted | RoundOpened | RoundClosed | EpochClosed | Served | Turn | Heard
"""What only such workers are told."""

_from_worker = msgspec.msgpack.Decoder(FromWorker)
_from_coordinator = msgspec.msgpack.Decoder(FromCoordinator)


def founders_group(attempt: int) -> int:
    """The number of a group of founders that gathered for the so-manieth time: below all others."""
    return -1 - attempt


def encode(message: FromWorker | FromCoordinator) -> bytes:
    """The message as it travels."""
    return msgspec.msgpack.encode(message)


def decode_from_worker(payload: bytes) -> FromWorker:
    """A worker's message; anything else raises `msgspec.DecodeError`."""
    message: FromWorker = _from_worker.decode(payload)
    return message


def decode_from_coordinator(payload: bytes) -> FromCoordinator:
    """The coordinator's message; anything else raises `msgspec.DecodeError`."""
    message: FromCoordinator = _from_coordinator.decode(payload)
    return message
