# SPDX-License-Identifier: Apache-2.0
"""The course of a run where its server is: from the first portion to the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gangline.paramserver.functional.crew import Crew
from gangline.paramserver.functional.leaves import Leaves
from gangline.paramserver.functional.ledger import Ledger
from gangline.paramserver.functional.partition import partition
from gangline.paramserver.functional.result import Epoch, Tally, Trained
from gangline.paramserver.functional.server import Server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.paramserver.functional.arguments import Settings
    from gangline.paramserver.functional.computing import Job
    from gangline.paramserver.functional.cuts import Keeper, Kept
    from gangline.paramserver.functional.ledger import Done
    from gangline.paramserver.functional.peers import Peer
    from gangline.paramserver.functional.server import Cut

Validate = Callable[[Leaves, int], tuple[float | None, float | None]]
"""What is called with the model after every epoch, and the number of that epoch."""


def ledger_of(settings: Settings, rows: int, done: Done | None = None) -> Ledger:
    """Who computes which rows: the same wherever it is asked for."""
    parts = partition(settings.scheme, rows=rows, workers=settings.workers, seed=settings.seed)
    return Ledger(
        parts,
        batch_size=settings.batch_size,
        per_push=settings.per_push,
        epochs=settings.epochs,
        in_step=settings.is_in_step,
        shared=settings.mode.backups > 0,
        done=done,
    )


def train(
    settings: Settings,
    job: Job,
    model: Leaves,
    judge: Validate,
    keeper: Keeper | None,
    peers: Sequence[Peer] = (),
) -> Trained:
    """Trains by workers that are started here, or by `peers` beside this process."""
    rows, kept = job.features.num_rows, None if keeper is None else keeper.read()
    if keeper is not None and kept is not None:
        model = keeper.leaves(kept, model)
    ledger = ledger_of(settings, rows, kept.done if kept else None)
    tally = kept.tally if kept else Tally()
    tally.lost.clear()  # those of an earlier process: everybody is here again
    server = Server(settings, job, model=model, ledger=ledger, tally=tally)
    if ledger.is_done:
        assert kept is not None, "an epoch has rows"
        return _result(settings, job, model, tally, kept.history, kept.seconds)
    with Crew(settings, job, server, peers):
        history, seconds = _follow(server, judge, keeper, kept)
    return _result(settings, job, server.model, tally, history, seconds)


def _follow(
    server: Server, judge: Validate, keeper: Keeper | None, kept: Kept | None
) -> tuple[list[Epoch], float]:
    """Validates and keeps the model after every epoch, while the workers go on."""
    history = list(kept.history) if kept else []
    before_s = seconds = kept.seconds if kept else 0.0
    while (cut := server.next_cut()) is not None:
        seconds = before_s + cut.seconds
        history.append(_epoch_of(cut, judge, seconds))
        if keeper is not None:
            parts = {"done": cut.done, "tally": cut.tally, "history": history, "seconds": seconds}
            keeper.write(cut.model, parts)
    return sorted(history, key=lambda one: one.epoch), seconds


def _epoch_of(cut: Cut, judge: Validate, seconds: float) -> Epoch:
    loss, accuracy = judge(cut.model, cut.epoch + 1)
    return Epoch(
        epoch=cut.epoch + 1,
        loss=loss,
        accuracy=accuracy,
        seconds=seconds,
        samples=cut.tally.samples,
    )


def _result(
    settings: Settings,
    job: Job,
    model: Leaves,
    tally: Tally,
    history: list[Epoch],
    seconds: float,
) -> Trained:
    return Trained(
        model=job.model_form.build(model),
        history=tuple(history),
        mode=settings.named_mode,
        workers=settings.workers,
        updates=tally.updates,
        batches=tally.batches,
        samples=tally.samples,
        samples_of=dict(tally.samples_of),
        dropped=tally.dropped,
        staleness=dict(sorted(tally.staleness.items())),
        waited_s=dict(tally.waited_s),
        lost=dict(tally.lost),
        seconds=seconds,
    )
