# SPDX-License-Identifier: Apache-2.0
"""Sums up steps that nobody needs one by one, so that the log of a run of months stays small.

Steps that are alike and follow each other become one `StepsDone`, from which the samples of every
single one can be told: what proves that none was lost is all there. What is logged in them becomes
one mean. The steps that `Detail` wants are written in full.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from gangline.eventlog.detail import Detail
from gangline.spec.event import Logged, StepDone, StepsDone, UnitsExchanged, Utilisation

if TYPE_CHECKING:
    from gangline.eventlog.writer import EventSink
    from gangline.spec.event import Event

FULL_STEPS = 100_000
"""So many steps of a worker are written one by one, where nobody says otherwise."""
MOST_STEPS = 100
"""So many are summed up at most …"""
MOST_S = 10.0
"""… and those of so many seconds: what a worker that is killed takes with it."""
UTILISATIONS = 10
"""So many samples of utilisation become one."""


class SampledWriter:
    """Writes to another log, after `full_steps` steps in short. Any thread may write."""

    def __init__(self, inner: EventSink, *, full_steps: int = FULL_STEPS) -> None:
        self._inner = inner
        self._num_full = full_steps
        self._detail = Detail()
        self._lock = threading.RLock()  # a signal handler may write, too
        self._steps: StepsDone | None = None
        self._logged: dict[tuple[str, ...], Logged] = {}
        self._in_full: deque[int] = deque(maxlen=64)
        """Steps that were written in full lately: so is what is logged in them."""
        self._utilisations: list[Utilisation] = []

    def write(self, event: Event) -> None:
        """Takes one event. Never raises."""
        with self._lock:
            match event:
                case StepDone():
                    self._take_step(event)
                case Logged() if self._is_short and event.view >= 0:
                    self._take_logged(event)
                case Utilisation() if self._is_short:
                    self._take_utilisation(event)
                case UnitsExchanged() | Utilisation() | Logged():
                    self._inner.write(event)
                case _:
                    self._let_go()  # the log keeps its order
                    self._inner.write(event)

    def flush(self) -> None:
        """Brings everything taken so far to the file. Never raises."""
        with self._lock:
            self._let_go()
            self._inner.flush()

    def close(self) -> None:
        """Flushes, and takes no more events. May be called twice. Never raises."""
        with self._lock:
            self._let_go()
            if self._utilisations:
                self._inner.write(_summed(self._utilisations))
                self._utilisations = []
            self._inner.close()

    @property
    def _is_short(self) -> bool:
        return self._num_full <= 0

    def _take_step(self, event: StepDone) -> None:
        is_wanted = self._detail.wants(event.step, event.view)
        if not self._is_short:
            self._num_full -= 1
            self._inner.write(event)
        elif is_wanted:
            self._let_go()
            self._in_full.append(event.step)
            self._inner.write(event)
        else:
            self._add(event)

    def _add(self, event: StepDone) -> None:
        before = self._steps
        if before is not None and not _goes_on(before, event):
            self._let_go()
            before = None
        self._steps = _range_of(event) if before is None else _joined(before, event)
        if _is_full(self._steps, event.t):
            self._let_go()

    def _take_logged(self, event: Logged) -> None:
        if event.step in self._in_full:
            self._inner.write(event)
            return
        names = tuple(sorted(event.values))
        known = self._logged.get(names)
        if known is not None and (known.view, known.epoch) != (event.view, event.epoch):
            self._inner.write(known)
            known = None
        self._logged[names] = event if known is None else _mean(known, event)
        if self._logged[names].steps >= MOST_STEPS:
            self._inner.write(self._logged.pop(names))

    def _take_utilisation(self, event: Utilisation) -> None:
        self._utilisations.append(event)
        if len(self._utilisations) >= UTILISATIONS:
            self._inner.write(_summed(self._utilisations))
            self._utilisations = []
        # In a long step nothing else would tell that time has passed.
        if self._steps is not None and _is_full(self._steps, event.t):
            self._let_go()

    def _let_go(self) -> None:
        """Writes what is summed up so far."""
        steps, self._steps = self._steps, None
        if steps is not None:
            self._inner.write(steps)
        logged, self._logged = self._logged, {}
        for event in logged.values():
            self._inner.write(event)


def _range_of(event: StepDone) -> StepsDone:
    took_s = event.compute_s + event.data_s + event.exchange_s + event.update_s
    names = [name for name in event.__struct_fields__ if name != "parts"]
    fields = {name: getattr(event, name) for name in names}
    return StepsDone(**fields, steps=1, since=event.t - took_s)


def _goes_on(before: StepsDone, event: StepDone) -> bool:
    """Whether a step follows those before, and is like each of them."""
    total, samples = event.stop - event.start, event.samples
    return (
        (event.view, event.epoch, event.team) == (before.view, before.epoch, before.team)
        and event.step == before.step + before.steps
        and event.start == before.stop
        and total * before.steps == before.stop - before.start
        and samples * before.steps == before.samples
    )


def _joined(before: StepsDone, event: StepDone) -> StepsDone:
    return msgspec.structs.replace(
        before,
        t=event.t,
        steps=before.steps + 1,
        samples=before.samples + event.samples,
        stop=event.stop,
        compute_s=before.compute_s + event.compute_s,
        data_s=before.data_s + event.data_s,
        exchange_s=before.exchange_s + event.exchange_s,
        update_s=before.update_s + event.update_s,
        turn_s=before.turn_s + event.turn_s,
    )


def _is_full(steps: StepsDone, t: float) -> bool:
    return steps.steps >= MOST_STEPS or not 0 <= t - steps.since < MOST_S


def _mean(known: Logged, event: Logged) -> Logged:
    """Both together, by their samples."""
    samples = known.samples + event.samples
    values: dict[str, float | None] = {}
    for name, new in event.values.items():
        old = known.values[name]
        if old is None or new is None:
            values[name] = None
        else:
            values[name] = (old * known.samples + new * event.samples) / samples
    return msgspec.structs.replace(
        event, samples=samples, values=values, steps=known.steps + event.steps
    )


def _summed(samples: list[Utilisation]) -> Utilisation:
    """One sample over the time of all: means of what is a rate, sums of what is counted."""
    count, last = len(samples), samples[-1]
    gpus = [one.gpu for one in samples if one.gpu is not None]
    return msgspec.structs.replace(
        last,
        cpu=round(sum(one.cpu for one in samples) / count, 3),
        node_cpu=round(sum(one.node_cpu for one in samples) / count, 3),
        sent_bytes=sum(one.sent_bytes for one in samples),
        received_bytes=sum(one.received_bytes for one in samples),
        gpu=round(sum(gpus) / len(gpus), 3) if gpus else None,
    )
