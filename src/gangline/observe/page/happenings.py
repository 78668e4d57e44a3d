# SPDX-License-Identifier: Apache-2.0
"""What happened in a run besides its steps: decisions, faults, recoveries, ends."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.observe.pauses import TURNS
from gangline.observe.timeline import ORDERS
from gangline.spec.event import (
    Decision,
    FaultFired,
    GradientNotFinite,
    GradientTooLarge,
    PlanMade,
    Regrouped,
    RoundEnded,
    ViewAdopted,
    WorkerEnded,
)

if TYPE_CHECKING:
    from gangline.spec.event import AnyEvent

_MOST = 2000
"""Of each kind; what is beyond is counted."""
_MOST_VIEWS = 16
_MOST_NUMBERS = 32
"""Of a decision: a job of thousands has a number for each worker."""


class Happening(msgspec.Struct, kw_only=True):
    """One mark of the charts."""

    x: float
    """Seconds since the run began."""
    kind: str
    """`decision`, `fault`, `recovery`, `ended`, `gradient`, `plan`, `merge` or `pause`."""
    label: str
    text: str = ""
    worker: int | None = None
    took_s: float | None = None
    numbers: dict[str, float | None] = {}


class Happenings:
    """Keeps what happened, in order."""

    def __init__(self) -> None:
        self.marks: list[Happening] = []
        self.num_left_out = 0
        self._counts: dict[str, int] = {}
        self._decisions: set[tuple[Any, ...]] = set()
        self._groups: dict[tuple[int, int], Happening] = {}
        self._pause: Happening | None = None
        self._members: dict[int, dict[int, frozenset[int]]] = {}
        """Of each team, who was in its last views."""

    def add(self, event: AnyEvent, origin: float) -> bool:
        """Whether something happened around which steps are of interest."""
        mark = self._mark(event, event.t - origin)
        if mark is None:
            return False
        self._counts[mark.kind] = self._counts.get(mark.kind, 0) + 1
        if self._counts[mark.kind] <= _MOST:
            self.marks.append(mark)
        else:
            self.num_left_out += 1
        return mark.kind in ("decision", "fault", "recovery", "pause") or (
            isinstance(event, WorkerEnded) and event.exit_code != 0
        )

    def of(self, *kinds: str) -> list[Happening]:
        """Those of some kinds."""
        return [mark for mark in self.marks if mark.kind in kinds]

    def _mark(self, event: AnyEvent, x: float) -> Happening | None:
        match event:
            case Decision():
                return self._decision(event, x)
            case FaultFired():
                text = f"in step {event.step}, at {event.where}"
                label = f"fault: {event.fault} of worker {event.worker}"
                return Happening(x=x, kind="fault", label=label, text=text, worker=event.worker)
            case Regrouped():
                return self._regrouped(event, x)
            case WorkerEnded() if event.exit_code != 0:
                how = event.signal or f"exit code {event.exit_code}"
                label = f"worker {event.worker} ended: {how}"
                return Happening(
                    x=x, kind="ended", label=label, text=event.reason, worker=event.worker
                )
            case GradientNotFinite():
                label = f"worker {event.worker}: a gradient was not finite"
                text = f"in step {event.step}"
                return Happening(x=x, kind="gradient", label=label, text=text, worker=event.worker)
            case GradientTooLarge():
                label = f"worker {event.worker}: a gradient was too large"
                text = f"in step {event.step}: norm {event.norm:.3g}, usual is {event.usual:.3g}"
                return Happening(x=x, kind="gradient", label=label, text=text, worker=event.worker)
            case PlanMade():
                text = "\n".join([*event.reasons, *([f"hint: {event.hint}"] if event.hint else [])])
                label = f"plan: {event.chosen} ({event.bound})"
                return Happening(
                    x=x, kind="plan", label=label, text=text, numbers={"step_s": event.step_s}
                )
            case RoundEnded():
                return _merged(event, x)
            case ViewAdopted():
                self._adopt(event)
        return None

    def _decision(self, event: Decision, x: float) -> Happening | None:
        """One copy of what every worker decided for itself, alike."""
        if event.what in TURNS:
            self._turn(x, is_pause=TURNS[event.what])
        numbers = dict(islice(event.numbers.items(), _MOST_NUMBERS))
        key = (event.what, event.reason, tuple(numbers.items()))
        if key in self._decisions and event.what not in ORDERS:
            return None
        if len(self._decisions) < _MOST:
            self._decisions.add(key)
        mark = Happening(x=x, kind="decision", label=event.what, text=event.reason, numbers=numbers)
        if event.what == "pause":
            mark.kind, self._pause = "pause", mark
        elif event.what == "resume_steps":
            mark.kind, mark.label = "pause", "pause ends"
        return mark

    def _turn(self, x: float, *, is_pause: bool) -> None:
        """The pause that there was is over."""
        if self._pause is not None and not is_pause:
            self._pause.took_s = x - self._pause.x
            self._pause = None

    def _adopt(self, event: ViewAdopted | Regrouped) -> None:
        views = self._members.setdefault(event.team, {})
        views.setdefault(event.view, frozenset(event.members))
        if len(views) > _MOST_VIEWS:
            del views[min(views)]

    def _is_new(self, event: Regrouped) -> bool:
        """Whether the worker was not in the view before this one."""
        self._adopt(event)
        views = self._members[event.team]
        before = max((view for view in views if view < event.view), default=None)
        return before is not None and event.worker not in views[before]

    def _regrouped(self, event: Regrouped, x: float) -> Happening | None:
        """One mark for a group, by the member that took longest to enter it.

        Whoever comes anew has waited to be let in, while the others trained: its time is no recovery.
        """
        is_new = self._is_new(event)
        known = self._groups.get((event.team, event.view))
        if known is not None:
            if not is_new:
                known.took_s = max(known.took_s or 0.0, event.took_s)
            return None
        count = len(event.members)
        mark = Happening(
            x=x,
            kind="recovery",
            label=f"new group of {count} worker{'s' * (count != 1)}, from step {event.step} on",
            text=event.reason,
            took_s=None if is_new else event.took_s,
            numbers={"members": float(count), "copied": float(event.num_behind)},
        )
        self._groups[event.team, event.view] = mark
        return mark


def _merged(event: RoundEnded, x: float) -> Happening:
    what = "merged" if event.is_committed else "not merged"
    return Happening(
        x=x,
        kind="merge",
        label=f"round {event.number}: {len(event.offsets)} teams {what} ({event.sync})",
        text=event.reason,
        took_s=event.took_s,
        numbers={
            "exchange_s": event.exchange_s,
            "busy_s": event.busy_s,
            "drift": event.drift,
            "sent_bytes": float(event.sent_bytes),
            "committed": float(event.is_committed),
        },
    )
