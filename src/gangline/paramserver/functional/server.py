# SPDX-License-Identifier: Apache-2.0
"""The server: one model, the clocks of its workers, and the ledger of rows, behind one lock."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from gangline.paramserver.clocks import Clocks, Closed, Fate
from gangline.paramserver.functional.computing import Job, Outcome, place
from gangline.paramserver.functional.leaves import Leaves, combine, copied
from gangline.paramserver.functional.ledger import Done, Ledger, Portion
from gangline.paramserver.functional.result import Tally
from gangline.spec.errors import GradientError, LaunchError

if TYPE_CHECKING:
    from gangline.paramserver.functional.arguments import Settings


class Task(msgspec.Struct, frozen=True):
    """What a worker is to compute."""

    portion: Portion
    clock: int
    model: Leaves
    """The parameters that it has read. Nobody changes them: every update makes new ones."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The model after an epoch, and exactly what is in it."""

    epoch: int
    model: Leaves
    done: Done
    tally: Tally
    seconds: float


class Server:
    """What workers take from and push to, each in its own thread."""

    def __init__(
        self, settings: Settings, job: Job, *, model: Leaves, ledger: Ledger, tally: Tally
    ) -> None:
        workers = range(settings.workers)
        self._settings = settings
        self._job = job
        self._model = model
        self._ledger = ledger
        self._tally = tally
        self._clocks = Clocks(settings.mode, workers)
        self._changed = threading.Condition()
        self._held: dict[int, tuple[Portion, Outcome]] = {}
        self._idle: set[int] = set()
        self._cuts: deque[Cut] = deque()
        self._error: BaseException | None = None
        self._is_stopped = False
        self._started = time.monotonic()
        for worker in workers:
            tally.waited_s.setdefault(worker, 0.0)
            tally.samples_of.setdefault(worker, 0)

    @property
    def model(self) -> Leaves:
        """The present parameters."""
        with self._changed:
            return self._model

    def take(self, worker: int) -> Task | None:
        """The next task of a worker, when the mode lets it begin. None: nothing will come any more."""
        begun = time.monotonic()
        with self._changed:
            task = self._next_task(worker)
            while task is None and not self._is_over:
                self._changed.wait()
                task = self._next_task(worker)
            self._tally.waited_s[worker] += time.monotonic() - begun
            return task

    def push(self, worker: int, task: Task, outcome: Outcome) -> None:
        """A worker's update has come."""
        with self._changed:
            if self._is_over:
                return
            arrival = self._clocks.arrive(worker, task.clock)
            match arrival.fate:
                case Fate.APPLIED:
                    self._apply_alone(worker, task, outcome)
                    self._count([(worker, task.portion)], staleness=arrival.staleness)
                case Fate.HELD:
                    self._held[worker] = (task.portion, outcome)
                    self._close(arrival.closed)
                case Fate.LATE:
                    self._tally.dropped += 1
                    self._ledger.give_back(task.portion, late=worker)
            self._changed.notify_all()

    def lose(self, worker: int, task: Task | None, why: str) -> None:
        """A worker is gone: others are given its rows, and nobody waits for it."""
        with self._changed:
            self._tally.lost[worker] = why
            self._idle.discard(worker)
            if task is not None:
                self._ledger.give_back(task.portion)
            self._ledger.lose(worker)
            self._close(self._clocks.leave(worker))
            if not self._living and not self._ledger.is_done:
                self._error = self._error or LaunchError(
                    f"all {self._settings.workers} workers are lost; the last one, {worker}: {why}"
                )
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Ends the run by an error, the first one if there are several."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def stop(self) -> None:
        """Nobody is given anything any more."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def next_cut(self) -> Cut | None:
        """Waits until an epoch is over; None after the last one. Then raises what ended the run."""
        with self._changed:
            while not self._cuts and self._error is None and not self._ledger.is_done:
                self._changed.wait()
            if self._cuts:
                return self._cuts.popleft()
            if self._error is not None:
                raise self._error
            return None

    @property
    def _is_over(self) -> bool:
        return self._is_stopped or self._error is not None or self._ledger.is_done

    @property
    def _living(self) -> list[int]:
        lost = self._tally.lost
        return [worker for worker in range(self._settings.workers) if worker not in lost]

    def _next_task(self, worker: int) -> Task | None:
        if self._is_over:
            return None
        others_idle = bool(self._idle - {worker})
        if worker in self._idle and self._ledger.has_work(worker, others_idle=others_idle):
            self._wake(worker)
        if not self._clocks.may_begin(worker):
            return None
        portion = self._ledger.take(worker, others_idle=others_idle)
        if portion is None:
            self._idle.add(worker)
            self._close(self._clocks.finish(worker))
            self._changed.notify_all()
            is_woken = worker not in self._idle  # by its own leaving, which closed the epoch
            return self._next_task(worker) if is_woken else None
        return Task(portion, self._clocks.begin(worker), self._model)

    def _wake(self, worker: int) -> None:
        self._idle.discard(worker)
        self._clocks.resume(worker)

    def _close(self, closed: Closed | None) -> None:
        """Applies a round, in the order of its workers: who was first changes no bit."""
        if closed is None:
            return
        rounds = [(worker, *self._held.pop(worker)) for worker in sorted(closed.workers)]
        total = sum(portion.num_rows for _, portion, _ in rounds)
        is_sum = self._settings.reduction == "sum" and not self._job.pushes_models
        weights = [1.0 if is_sum else portion.num_rows / total for _, portion, _ in rounds]
        outcomes = [outcome.leaves for _, _, outcome in rounds]
        mean = combine(list(zip(weights, outcomes, strict=True)))
        if self._job.pushes_models:
            self._model = mean
        else:
            whose = ", ".join(str(worker) for worker, _, _ in rounds)
            self._step(mean, f"round {closed.round + 1} (workers {whose})")
        self._count([(worker, portion) for worker, portion, _ in rounds], staleness=0)

    def _apply_alone(self, worker: int, task: Task, outcome: Outcome) -> None:
        if self._settings.is_hogwild:
            return  # by its worker, while it computed
        if not self._job.pushes_models:
            last = len(task.portion.batches) - 1
            self._step(outcome.leaves, place(worker, task.portion, last))
            return
        share = 1 / len(self._clocks.active)
        parts = [(1.0, self._model), (share, outcome.leaves), (-share, task.model)]
        self._model = combine(parts)

    def _step(self, gradients: Leaves, what: str) -> None:
        try:
            self._model = self._job.step(self._model, gradients, what)
        except Exception as error:  # whoever pushed: the run ends by it
            self._error = self._error or error

    def _count(self, applied: list[tuple[int, Portion]], *, staleness: int) -> None:
        tally = self._tally
        for worker, portion in applied:
            tally.updates += 1
            tally.samples += portion.num_rows
            tally.batches += len(portion.batches)
            tally.samples_of[worker] += portion.num_rows
            tally.staleness[staleness] = tally.staleness.get(staleness, 0) + 1
        over = [portion.epoch for _, portion in applied if self._ledger.apply(portion)]
        for epoch in over if self._error is None else ():
            self._cut(epoch)
        if over and self._settings.mode.has_rounds:
            for worker in list(self._idle):  # together, or the first one would make a round alone
                self._wake(worker)

    def _cut(self, epoch: int) -> None:
        copied = msgspec.convert(msgspec.to_builtins(self._tally), type(self._tally))
        seconds = time.monotonic() - self._started
        self._cuts.append(
            Cut(
                epoch=epoch,
                model=self._kept_model(epoch),
                done=self._ledger.done,
                tally=copied,
                seconds=seconds,
            )
        )

    def _kept_model(self, epoch: int) -> Leaves:
        """The parameters as they are now, whoever goes on with them."""
        if not self._settings.is_hogwild:
            return self._model
        form = self._job.model_form
        try:
            form.check_finite(self._model, f"the model after epoch {epoch + 1}")
        except GradientError as error:
            self._error = self._error or error
        return copied(self._model)
