# SPDX-License-Identifier: Apache-2.0
"""The past of a job as points over time: so many and no more, however long it has run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gangline.protocol.live import Moment
from gangline.spec.event import StepDone, StepsDone

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET_S = 1.0
MAX_BUCKETS = 900
"""Of more, two become one each, from there on."""
SETTLED_S = 2.0
"""So long after it, and a step, nothing is expected to come of a time: logs are written late."""
MAX_STEP_S = 60.0
"""Longer steps are not waited for."""
Steps = StepDone | StepsDone


class Sums(NamedTuple):
    """Steps of one worker, added up; or parts of steps."""

    steps: float = 0.0
    samples: float = 0.0
    compute_s: float = 0.0
    data_s: float = 0.0
    exchange_s: float = 0.0
    update_s: float = 0.0

    @classmethod
    def of(cls, event: Steps) -> Sums:
        """What an event says of one step, or of several."""
        return cls(
            event.steps if isinstance(event, StepsDone) else 1,
            event.samples,
            event.compute_s,
            event.data_s,
            event.exchange_s,
            event.update_s,
        )

    def plus(self, other: Sums) -> Sums:
        """Both together."""
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def own_s(self) -> float:
        """What it does for itself."""
        return self.compute_s + self.data_s + self.update_s

    @property
    def total_s(self) -> float:
        """All that its steps took."""
        return self.own_s + self.exchange_s


def began(event: Steps) -> float:
    """When a step, or the first of several, began."""
    return event.since if isinstance(event, StepsDone) else event.t - Sums.of(event).total_s


class Bucket:
    """A short time, from `t` on."""

    def __init__(self, t: float) -> None:
        self.t = t
        self._did: dict[int, list[float]] = {}
        """By worker: samples, and the time that it took for them, without exchanging."""
        self.shares: dict[int, int] = {}
        self.weight = 0.0
        self.loss = 0.0

    def add(self, worker: int, samples: float, own_s: float) -> None:
        """A worker has made steps, or parts of them."""
        did = self._did.setdefault(worker, [0.0, 0.0])
        did[0] += samples
        did[1] += own_s

    def absorb(self, other: Bucket) -> None:
        """The time after it becomes a part of it."""
        for worker, (samples, own_s) in other._did.items():
            self.add(worker, samples, own_s)
        self.shares = other.shares or self.shares
        self.weight += other.weight
        self.loss += other.loss

    def moment(self, width_s: float) -> Moment:
        """One point of the charts."""
        parts = [samples / own_s for samples, own_s in self._did.values() if own_s > 0]
        return Moment(
            t=self.t,
            samples_per_s=math.fsum(samples for samples, _ in self._did.values()) / width_s,
            parts_per_s=math.fsum(parts) if parts else None,
            loss=self.loss / self.weight if self.weight else None,
            shares=self.shares,
        )


class Timeline:
    """Takes what has happened, roughly by time."""

    def __init__(self) -> None:
        self._width_s = BUCKET_S
        self._buckets: dict[int, Bucket] = {}
        """By the number of their time."""
        self._taken = -math.inf
        """Up to which time points were taken."""
        self._newest_s = -math.inf
        self._longest_s = 0.0
        """The longest of the last steps."""

    def see(self, t: float) -> None:
        """Something has happened, so it is so late."""
        self._newest_s = max(self._newest_s, t)

    def add_steps(self, event: Steps) -> None:
        """A worker has made steps: a part of them in each time that they lasted."""
        stop, own_s = event.t, event.compute_s + event.data_s + event.update_s
        start = event.since if isinstance(event, StepsDone) else stop - own_s - event.exchange_s
        start = min(start, stop)
        self._longest_s = max(stop - start, 0.99 * self._longest_s)
        at = max(start, stop - MAX_STEP_S)
        while at < stop:
            following = min((math.floor(at / self._width_s) + 1) * self._width_s, stop)
            part = (following - at) / (stop - start)
            self.at(at).add(event.worker, event.samples * part, own_s * part)
            at = following

    def at(self, t: float) -> Bucket:
        """What is known of a time."""
        number = math.floor(t / self._width_s)
        found = self._buckets.get(number)
        if found is None:
            found = self._buckets[number] = Bucket(number * self._width_s)
            if len(self._buckets) > MAX_BUCKETS:
                self._halve()
                return self.at(t)
        return found

    def _halve(self) -> None:
        """Every two become one."""
        old, self._buckets = sorted(self._buckets.items()), {}
        self._width_s *= 2
        for _, bucket in old:
            number = math.floor(bucket.t / self._width_s)
            known = self._buckets.setdefault(number, Bucket(number * self._width_s))
            known.absorb(bucket)

    def moments(self) -> list[Moment]:
        """All points so far, but those that may still change."""
        return list(self._points())

    def take_moments(self) -> list[Moment]:
        """The points that are new since the last time."""
        new = [one for one in self._points() if one.t > self._taken]
        self._taken = new[-1].t if new else self._taken
        return new

    def _points(self) -> Iterator[Moment]:
        """Where nothing happened for a while, nothing was done: two points say so."""
        wait_s = SETTLED_S + min(self._longest_s, MAX_STEP_S)
        before: int | None = None
        for number, bucket in sorted(self._buckets.items()):
            if bucket.t + self._width_s + wait_s > self._newest_s:
                return
            if before is not None and number > before + 1:
                for idle in sorted({before + 1, number - 1}):
                    yield Bucket(idle * self._width_s).moment(self._width_s)
            yield bucket.moment(self._width_s)
            before = number

    @property
    def loss(self) -> float | None:
        """The newest one that is known."""
        known = [one for _, one in sorted(self._buckets.items()) if one.weight]
        return known[-1].loss / known[-1].weight if known else None
