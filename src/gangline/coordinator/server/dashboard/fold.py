# SPDX-License-Identifier: Apache-2.0
"""What a stream of events comes to: how fast everybody is now, and how it was, in bounded memory."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from gangline.protocol.live import Moment, StepBar
from gangline.spec.event import (
    Decision,
    Logged,
    StepDone,
    StepsDone,
    Utilisation,
    ViewAdopted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.spec.event import AnyEvent

BUCKET_S = 1.0
MAX_BUCKETS = 900
"""Of more, two become one each, from there on."""
SETTLED_S = 2.0
"""So long after it, nothing is expected to come of a time any more: logs are written late."""
LATELY_S = 5.0
"""What is averaged over for the present speeds; at least one step."""
MAX_BARS, MAX_BARS_OF_WORKER = 640, 40
BARS_S = 60.0
"""Who has made no step for so long, while others have, is not shown among the last steps."""
LOSS = "loss"


class Sums(NamedTuple):
    """Steps of one worker, added up."""

    steps: int = 0
    samples: int = 0
    compute_s: float = 0.0
    data_s: float = 0.0
    exchange_s: float = 0.0
    update_s: float = 0.0

    def plus(self, other: Sums) -> Sums:
        """Both together."""
        return Sums(
            self.steps + other.steps,
            self.samples + other.samples,
            self.compute_s + other.compute_s,
            self.data_s + other.data_s,
            self.exchange_s + other.exchange_s,
            self.update_s + other.update_s,
        )

    @property
    def own_s(self) -> float:
        """What it does for itself."""
        return self.compute_s + self.data_s + self.update_s

    @property
    def total_s(self) -> float:
        """All that its steps took."""
        return self.own_s + self.exchange_s


class Bucket:
    """A short time, from `t` on."""

    def __init__(self, t: float) -> None:
        self.t = t
        self.sums: dict[int, Sums] = {}
        self.shares: dict[int, int] = {}
        self.weight = 0.0
        self.loss = 0.0

    def add(self, worker: int, sums: Sums) -> None:
        """A worker has made steps."""
        self.sums[worker] = self.sums.get(worker, Sums()).plus(sums)

    def absorb(self, other: Bucket) -> None:
        """The time after it becomes a part of it."""
        for worker, sums in other.sums.items():
            self.add(worker, sums)
        self.shares = other.shares or self.shares
        self.weight += other.weight
        self.loss += other.loss

    @property
    def moment(self) -> Moment:
        """One point of the charts."""
        return Moment(
            t=self.t,
            samples_per_s=_rate((one.samples, one.total_s) for one in self.sums.values()),
            parts_per_s=_rate((one.samples, one.own_s) for one in self.sums.values()),
            loss=self.loss / self.weight if self.weight else None,
            shares=self.shares,
        )


def _rate(workers: Iterable[tuple[int, float]]) -> float | None:
    """What workers do together, each of which took so long for so many samples; None: nothing."""
    known = [samples / seconds for samples, seconds in workers if seconds > 0]
    return math.fsum(known) if known else None


class Fold:
    """Takes events, roughly by time, and knows the present and the past of a job."""

    def __init__(self) -> None:
        self._width_s = BUCKET_S
        self._buckets: dict[int, Bucket] = {}
        """By the number of their time; the oldest first."""
        self._sent = -math.inf
        """Up to which time points were taken."""
        self._newest_s = -math.inf
        self._team_shares: dict[int, dict[int, int]] = {}
        self._steps: dict[int, deque[StepDone | StepsDone]] = {}
        self.used: dict[int, Utilisation] = {}
        """The newest figures of each worker."""
        self.why: dict[int, str] = {}
        """The newest decision about each worker."""
        self.teams: dict[int, int] = {}
        """Which team each worker is in."""
        self.epoch = -1

    def take(self, events: Iterable[AnyEvent]) -> None:
        """Things have happened."""
        for event in events:
            self._newest_s = max(self._newest_s, event.t)
            match event:
                case StepDone() | StepsDone():
                    self._take_steps(event)
                case Logged(values=values, samples=samples):
                    loss = values.get(LOSS)
                    if loss is not None:
                        bucket = self._bucket(event.t)
                        bucket.loss += loss * samples
                        bucket.weight += samples
                case ViewAdopted():
                    self._take_view(event)
                case Utilisation(worker=worker):
                    self.used[worker] = event
                case Decision(reason=reason, numbers=numbers) if event.what != "publish_view":
                    about = numbers.get("worker")
                    if about is not None:
                        self.why[int(about)] = reason

    def _take_steps(self, event: StepDone | StepsDone) -> None:
        self.epoch = max(self.epoch, event.epoch)
        self.teams[event.worker] = event.team
        self._bucket(event.t).add(event.worker, sums_of(event))
        self._steps.setdefault(event.worker, deque(maxlen=256)).append(event)

    def _take_view(self, event: ViewAdopted) -> None:
        known = self._team_shares if event.whole else {}
        self._team_shares = {
            **known, event.team: dict(zip(event.members, event.shares, strict=False))
        }  # fmt: skip
        shares = {w: n for team in self._team_shares.values() for w, n in team.items()}
        self._bucket(event.t).shares = shares

    # --- the past --------------------------------------------------------------------------------

    def _bucket(self, t: float) -> Bucket:
        number = math.floor(t / self._width_s)
        found = self._buckets.get(number)
        if found is None:
            found = self._buckets[number] = Bucket(number * self._width_s)
            if len(self._buckets) > MAX_BUCKETS:
                self._halve()
                return self._bucket(t)
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
        """All points of the charts so far, but those that may still change."""
        return [one.moment for _, one in sorted(self._buckets.items()) if self._is_settled(one)]

    def take_moments(self) -> list[Moment]:
        """The points that are new since the last time."""
        new = [one for one in self.moments() if one.t > self._sent]
        self._sent = new[-1].t if new else self._sent
        return new

    def _is_settled(self, bucket: Bucket) -> bool:
        return bucket.t + self._width_s + SETTLED_S <= self._newest_s

    # --- the present -----------------------------------------------------------------------------

    def lately(self, worker: int, now: float) -> Sums | None:
        """The last steps of a worker; None where it has made none for longer than some take."""
        steps = self._steps.get(worker)
        if not steps:
            return None
        last = steps[-1]
        took_s = last.compute_s + last.data_s + last.exchange_s + last.update_s
        if now - last.t > LATELY_S + 3 * took_s:
            return None
        found = Sums()
        for event in reversed(steps):
            if found.steps and last.t - event.t > LATELY_S:
                break
            found = found.plus(sums_of(event))
        return found

    def loss(self) -> float | None:
        """The newest one that is known."""
        known = [one for _, one in sorted(self._buckets.items()) if one.weight]
        return known[-1].loss / known[-1].weight if known else None

    def bars(self) -> list[StepBar]:
        """The last steps of all workers."""
        each = max(1, min(MAX_BARS_OF_WORKER, MAX_BARS // max(len(self._steps), 1)))
        newest_s = max((steps[-1].t for steps in self._steps.values()), default=0.0)
        shown = [
            one
            for _, steps in sorted(self._steps.items())[:MAX_BARS]
            if steps[-1].t > newest_s - BARS_S
            for one in list(steps)[-each:]
        ]
        least_s = _least_exchange_s(shown)
        return [_bar(one, least_s) for one in shown]


def sums_of(event: StepDone | StepsDone) -> Sums:
    """What an event says of one step, or of several."""
    steps = event.steps if isinstance(event, StepsDone) else 1
    return Sums(
        steps, event.samples, event.compute_s, event.data_s, event.exchange_s, event.update_s
    )


def _least_exchange_s(events: list[StepDone | StepsDone]) -> dict[tuple[int, int], float]:
    """By team and step, what exchanging took whoever came last; -1 for a step: any of them."""
    least: dict[tuple[int, int], float] = {}
    for one in events:
        each_s = one.exchange_s / sums_of(one).steps
        for step in (-1, *([one.step] if isinstance(one, StepDone) else [])):
            key = (one.team, step)
            least[key] = min(least.get(key, math.inf), each_s)
    return least


def _bar(one: StepDone | StepsDone, least_s: dict[tuple[int, int], float]) -> StepBar:
    steps = sums_of(one).steps
    # Workers may be summed up over different steps: there, the shortest of all stands for it.
    exchange_s = steps * least_s.get((one.team, one.step if steps == 1 else -1), 0.0)
    return StepBar(
        worker=one.worker,
        step=one.step,
        steps=steps,
        t=one.t,
        data_s=one.data_s,
        compute_s=one.compute_s,
        exchange_s=min(exchange_s, one.exchange_s),
        wait_s=max(0.0, one.exchange_s - exchange_s),
        update_s=one.update_s,
    )
