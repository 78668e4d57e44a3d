# SPDX-License-Identifier: Apache-2.0
"""`gangline.paramserv`: trains a model by functions that the user gives, on several workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.local.table import Table, check_rows
from gangline.paramserver.functional.arguments import Settings, check_functions, settings_of
from gangline.paramserver.functional.computing import Job, call
from gangline.paramserver.functional.crew import Crew
from gangline.paramserver.functional.cuts import Keeper, Kept
from gangline.paramserver.functional.leaves import Form, Leaves
from gangline.paramserver.functional.ledger import Ledger
from gangline.paramserver.functional.partition import partition
from gangline.paramserver.functional.result import Epoch, Tally, Trained
from gangline.paramserver.functional.server import Server
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gangline.paramserver.functional.server import Cut

    Validate = Callable[[Leaves, int], tuple[float | None, float | None]]


def paramserv(
    model: Any,
    features: Any,
    labels: Any,
    update: Callable[[Any, Any, Any, Any], Any],
    aggregate: Callable[[Any, Any, Any], Any],
    *,
    epochs: int,
    mode: str = "bsp",
    frequency: str = "batch",
    batch_size: int = 64,
    workers: int | None = None,
    scheme: str = "disjoint_contiguous",
    hyperparameters: Any = None,
    val_features: Any = None,
    val_labels: Any = None,
    validate: Callable[[Any, Any, Any, Any], Any] | None = None,
    average: str = "gradients",
    reduction: str = "mean",
    num_gradients: int | None = None,
    seed: int = 0,
    where: str = "threads",
    patience_s: float | None = None,
    checkpoint: str | Path | None = None,
) -> Trained:
    """Trains a model with a parameter server and its workers; see docs/paramserv.md.

    `update(model, hyperparameters, features, labels)` returns the mean gradients of a batch, and
    `aggregate(model, hyperparameters, gradients)` the model after a step.
    """
    table, targets = Table(features, name="features"), Table(labels, name="labels")
    check_rows(table, targets)
    check_functions(update=update, aggregate=aggregate)
    settings = settings_of(
        rows=table.num_rows,
        mode=mode,
        frequency=frequency,
        workers=workers,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        patience_s=patience_s,
        scheme=scheme,
        average=average,
        reduction=reduction,
        where=where,
    )
    form = Form.of(model)
    job = Job(
        update=update,
        aggregate=aggregate,
        hyperparameters={} if hyperparameters is None else hyperparameters,
        features=table,
        labels=targets,
        model_form=form,
        gradient_form=_gradient_form(form, num_gradients),
        pushes_models=average == "models",
    )
    judge = _validation(job, validate, val_features, val_labels)
    keeper = None
    if checkpoint is not None:
        keeper = Keeper(checkpoint, settings, form, rows=table.num_rows)
    return _train(settings, job, form.copies(model), judge, keeper)


def _gradient_form(form: Form, count: int | None) -> Form:
    if count is None:
        return form
    if not isinstance(count, int) or not 1 <= count <= len(form.shapes):
        raise UsageError(
            f"num_gradients={count!r}: give of how many of the model's {len(form.shapes)} entries, "
            f"from the first, update returns a gradient"
        )
    return form.first(count)


def _train(
    settings: Settings, job: Job, model: Leaves, judge: Validate, keeper: Keeper | None
) -> Trained:
    rows, kept = job.features.num_rows, None if keeper is None else keeper.read()
    if keeper is not None and kept is not None:
        model = keeper.leaves(kept, model)
    parts = partition(settings.scheme, rows=rows, workers=settings.workers, seed=settings.seed)
    ledger = Ledger(
        parts,
        batch_size=settings.batch_size,
        per_push=settings.per_push,
        epochs=settings.epochs,
        in_step=settings.mode.has_rounds,
        shared=settings.mode.backups > 0,
        done=kept.done if kept else None,
    )
    tally = kept.tally if kept else Tally()
    tally.lost.clear()  # those of an earlier process: everybody is here again
    server = Server(settings, job, model=model, ledger=ledger, tally=tally)
    if ledger.is_done:
        assert kept is not None, "an epoch has rows"
        return _result(settings, job, model, tally, kept.history, kept.seconds)
    with Crew(settings, job, server):
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


def _validation(job: Job, validate: Any, features: Any, labels: Any) -> Validate:
    """What is called with the model after every epoch."""
    if validate is None:
        if features is not None or labels is not None:
            raise UsageError("val_features and val_labels are for validate; give that function too")
        return lambda model, epoch: (None, None)
    check_functions(validate=validate)
    if features is None or labels is None:
        raise UsageError("validate needs val_features and val_labels; give both")
    names = "val_features and val_labels"
    check_rows(Table(features, name="val_features"), Table(labels, name="val_labels"), names=names)

    def judge(model: Leaves, epoch: int) -> tuple[float | None, float | None]:
        arguments = (job.model_form.build(model), job.hyperparameters, features, labels)
        found = call("validate", validate, arguments, f"the model after epoch {epoch}")
        pair = found if isinstance(found, tuple | list) else (found, None)
        try:
            loss, accuracy = pair
            return float(loss), None if accuracy is None else float(accuracy)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"validate must return a loss, or a pair of loss and accuracy, not {found!r}"
            ) from error

    return judge


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
        mode=str(settings.mode),
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
