# SPDX-License-Identifier: Apache-2.0
"""What another machine's event log may say here: lines of its own workers, that a reader can read.

One line that cannot be read would make a whole log unreadable; one in another worker's name would
be taken for that worker's. Such lines are left out, and counted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.eventlog import EVENT_KINDS
from gangline.protocol.streaming import LAUNCHER
from gangline.spec.event import (
    SCHEMA_VERSION,
    AnyEvent,
    Decision,
    EpochDone,
    Event,
    EventsLost,
    FaultFired,
    GoalSet,
    GradientNotFinite,
    GradientTooLarge,
    LinkMeasured,
    Logged,
    LogOpened,
    PacingMeasured,
    Regrouped,
    RunEnded,
    RunStarted,
    StateHandedDown,
    StepDone,
    StepsDone,
    UnitsExchanged,
    Utilisation,
    ViewAdopted,
    WorkerEnded,
    WorkerReady,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_WORKERS = (
    *(LogOpened, WorkerReady, ViewAdopted, StepDone, Regrouped, FaultFired, GradientNotFinite),
    *(GradientTooLarge, EpochDone, LinkMeasured, PacingMeasured, Decision, EventsLost),
    *(StateHandedDown, GoalSet, StepsDone, Logged, Utilisation, UnitsExchanged),
)
_OF_LAUNCHERS = (LogOpened, RunStarted, RunEnded, WorkerEnded, Decision, EventsLost)
_DECIDED_BY_WORKERS = frozenset(
    {"begin_anew", "codec", "leave", "out_of_memory", "probe", "resumed", "small_shares"}
)
_DECIDED_BY_LAUNCHERS = frozenset(
    {"end_stopped", "keep_events", "never_joined", "notice", "respawn", "await_others"}
)
"""What they decide themselves. Everything else is the coordinator's to say."""
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class _Unknown(msgspec.Struct):
    """What every event has, also one of a kind that only a newer gangline knows."""

    kind: str
    t: float
    worker: int | None = None


_unknown_decoder: msgspec.json.Decoder[_Unknown] = msgspec.json.Decoder(_Unknown)


class Origin(NamedTuple):
    """Where lines come from."""

    run: str
    worker: int
    """Whose log it is; -1: a launcher's."""
    owns: Callable[[int], bool]
    """Whether a worker is the sending machine's."""

    @property
    def source(self) -> str:
        """Who such a log says it is of."""
        return "launcher" if self.worker == LAUNCHER else f"worker {self.worker}"


def read_line(line: bytes, origin: Origin) -> Event | str | None:
    """The event in a line, or the name of a kind that is not known here; None: it has no place here."""
    try:
        event = _decoder.decode(line)
    except _UNREADABLE:
        return _read_unknown(line, origin)
    kinds = _OF_LAUNCHERS if origin.worker == LAUNCHER else _OF_WORKERS
    return event if isinstance(event, kinds) and _is_its_own(event, origin) else None


def _is_its_own(event: AnyEvent, origin: Origin) -> bool:
    match event:
        case LogOpened():
            is_known = 1 <= event.schema <= SCHEMA_VERSION
            return is_known and (event.run, event.source) == (origin.run, origin.source)
        case EventsLost():
            return event.source == origin.source
        case RunStarted() | RunEnded():
            return event.is_joining
        case WorkerEnded():
            return origin.owns(event.worker)
        case Decision(what=what, numbers=numbers):
            own = _DECIDED_BY_LAUNCHERS if origin.worker == LAUNCHER else _DECIDED_BY_WORKERS
            said = numbers.get("worker")
            # What is not finite is read as nothing, and is nobody's either.
            number = origin.worker if said is None else int(said) if math.isfinite(said) else -2
            is_of_own = number == origin.worker or origin.owns(number)
            return is_of_own and (what in own or what.startswith("checkpoint_"))
    worker = getattr(event, "worker", origin.worker)
    return bool(worker == origin.worker)


def _read_unknown(line: bytes, origin: Origin) -> str | None:
    try:
        found = _unknown_decoder.decode(line)
    except _UNREADABLE:
        return None
    is_own = found.worker is None or found.worker == origin.worker or origin.owns(found.worker)
    return found.kind if is_own and found.kind not in EVENT_KINDS else None
