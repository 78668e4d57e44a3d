# SPDX-License-Identifier: Apache-2.0
"""What workers and the coordinator say to each other: msgpack over one WebSocket per worker.

The training loop never waits for an answer while it trains: measurements go out, views come in, and
the workers agree among themselves when a view takes effect.
"""

from __future__ import annotations

import msgspec

from gangline.spec.address import WireAddress
from gangline.spec.structure import Structure
from gangline.spec.view import View

PROTOCOL_VERSION = 2
MAX_MESSAGE_BYTES = 1 << 20


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


class Measured(Message, frozen=True, kw_only=True, tag="measured"):
    """What one step cost this worker."""

    step: int
    view: int
    samples: int
    compute_s: float


class Metrics(Message, frozen=True, kw_only=True, tag="metrics"):
    """What this worker measured of itself lately."""

    operations_per_s: float
    memory_bytes: float
    latency_s: float


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


class Goodbye(Message, frozen=True, kw_only=True, tag="goodbye"):
    """The worker leaves on purpose."""

    reason: str


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


class CheckpointAnswered(Message, frozen=True, kw_only=True, tag="checkpoint_answered"):
    """Whether a checkpoint is part of the job's history, or of a branch that was abandoned."""

    step: int
    is_agreed: bool
    reason: str


class Dismissed(Message, frozen=True, kw_only=True, tag="dismissed"):
    """The worker may go, for good: when the newest view without it holds, or its group is lost."""


class Probe(Message, frozen=True, kw_only=True, tag="probe"):
    """Asks which of these workers can be reached."""

    number: int
    workers: tuple[int, ...]
    addresses: tuple[WireAddress, ...]


class Pong(Message, frozen=True, kw_only=True, tag="pong"):
    """The echo of a ping."""

    sent_s: float


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """The coordinator will not have this worker, or what it asked for; the reason is for people."""

    reason: str
    is_left_behind: bool = False
    """The job has ended without this worker, which had trained in it."""


FromWorker = (
    Hello
    | Ready
    | Measured
    | Metrics
    | Ping
    | Failed
    | Probed
    | CheckpointWritten
    | Exhausted
    | Leaving
    | Goodbye
)
FromCoordinator = Gathered | ViewPublished | CheckpointAnswered | Dismissed | Probe | Pong | Refused

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
