# SPDX-License-Identifier: Apache-2.0
"""What a stream of events comes to: how fast everybody is now, and how it was, in bounded memory."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from gangline.coordinator.server.dashboard.timeline import Sums, Timeline, began
from gangline.protocol.live import StepBar
from gangline.spec.event import (
    Decision,
    GoalSet,
    Logged,
    RoundEnded,
    RunStarted,
    StepDone,
    StepsDone,
    Utilisation,
    ViewAdopted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.coordinator.server.dashboard.timeline import Steps
    from gangline.spec.event import AnyEvent

LATELY_S = 5.0
"""What is averaged over for the present speeds; at least one step."""
MAX_BARS, MAX_BARS_OF_WORKER = 640, 40
BARS_S = 60.0
"""Who has made no step for so long, while others have, is not shown among the last steps."""
LOSS = "loss"


class Lately(NamedTuple):
    """The last steps of a worker, and how long they took, with what was between them."""

    sums: Sums
    elapsed_s: float


class Fold:
    """Takes events, roughly by time, and knows the present and the past of a job."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        """The past."""
        self._team_shares: dict[int, dict[int, int]] = {}
        self._steps: dict[int, deque[Steps]] = {}
        self.used: dict[int, Utilisation] = {}
        """The newest figures of each worker."""
        self.why: dict[int, str] = {}
        """The newest decision about each worker."""
        self.teams: dict[int, int] = {}
        """Which team each worker is in."""
        self.nodes: dict[int, str] = {}
        """The names of the nodes of those that founded the job."""
        self._published: dict[int, float] = {}
        """The newest share of each worker that was decided."""
        self.epoch = -1
        self.epochs = 0
        self.num_merges = 0
        """How often teams were merged, as far as the logs were read."""
        self.last_merge: RoundEnded | None = None

    def take(self, events: Iterable[AnyEvent]) -> None:
        """Things have happened."""
        for event in events:
            self.timeline.see(event.t)
            match event:
                case StepDone() | StepsDone():
                    self._take_steps(event)
                case Logged(values=values, samples=samples):
                    loss = values.get(LOSS)
                    if loss is not None:
                        bucket = self.timeline.at(event.t)
                        bucket.loss += loss * samples
                        bucket.weight += samples
                case ViewAdopted():
                    self._take_view(event)
                case Utilisation(worker=worker):
                    self.used[worker] = event
                case RoundEnded(is_committed=True):
                    self.num_merges += 1
                    self.last_merge = event
                case RunStarted(is_joining=False):
                    self.nodes = dict(enumerate(event.nodes))
                case GoalSet():
                    self.epochs = event.epochs
                case Decision():
                    self._take_decision(event)

    def _take_decision(self, event: Decision) -> None:
        about = event.numbers.get("worker")
        if event.what != "publish_view":
            if about is not None:
                self.why[int(about)] = event.reason
            return
        for name, share in event.numbers.items():
            worker = name.removeprefix("share_")
            if share is None or name == worker or not worker.isdecimal():
                continue
            if self._published.get(int(worker), share) != share:
                self.why[int(worker)] = event.reason
            self._published[int(worker)] = share

    def _take_steps(self, event: Steps) -> None:
        self.epoch = max(self.epoch, event.epoch)
        self.teams[event.worker] = event.team
        self.timeline.add_steps(event)
        self._steps.setdefault(event.worker, deque(maxlen=256)).append(event)

    def _take_view(self, event: ViewAdopted) -> None:
        known = self._team_shares if event.whole else {}
        shares = dict(zip(event.members, event.shares, strict=False))
        self._team_shares = {**known, event.team: shares}
        self.timeline.at(event.t).shares = {
            worker: share for team in self._team_shares.values() for worker, share in team.items()
        }

    def lately(self, worker: int, now: float) -> Lately | None:
        """The last steps of a worker; None where it has made none for longer than some take."""
        steps = self._steps.get(worker)
        if not steps:
            return None
        last = steps[-1]
        if now - last.t > LATELY_S + 3 * Sums.of(last).total_s:
            return None
        found, since_s = Sums(), last.t
        for event in reversed(steps):
            if found.steps and last.t - event.t > LATELY_S:
                break
            found, since_s = found.plus(Sums.of(event)), min(since_s, began(event))
        return Lately(found, max(last.t - since_s, found.own_s))

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


def _least_exchange_s(events: list[Steps]) -> dict[tuple[int, int], float]:
    """By team and step, what exchanging took whoever came last; -1 for a step: any of them."""
    least: dict[tuple[int, int], float] = {}
    for one in events:
        each_s = one.exchange_s / Sums.of(one).steps
        for step in (-1, *([one.step] if isinstance(one, StepDone) else [])):
            key = (one.team, step)
            least[key] = min(least.get(key, math.inf), each_s)
    return least


def _bar(one: Steps, least_s: dict[tuple[int, int], float]) -> StepBar:
    steps = one.steps if isinstance(one, StepsDone) else 1
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
