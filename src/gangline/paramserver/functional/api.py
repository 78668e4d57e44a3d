# SPDX-License-Identifier: Apache-2.0
"""`gangline.paramserv`: trains a model by functions that the user gives, on several workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.local.table import Table, check_rows
from gangline.paramserver.functional.arguments import check_functions, settings_of
from gangline.paramserver.functional.computing import Job, call
from gangline.paramserver.functional.cuts import Keeper
from gangline.paramserver.functional.hogwild import HogwildJob
from gangline.paramserver.functional.jobs import Colleagues, shown
from gangline.paramserver.functional.leaves import Form, Leaves
from gangline.paramserver.functional.running import train
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gangline.paramserver.functional.result import Trained
    from gangline.paramserver.functional.running import Validate


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
    form = Form.of(model)
    colleagues = None
    if where == "job":
        compared = {
            "features": features,
            "labels": labels,
            "update": update,
            "aggregate": aggregate,
            "epochs": epochs,
            "mode": mode,
            "frequency": frequency,
            "batch_size": batch_size,
            "scheme": scheme,
            "hyperparameters": hyperparameters,
            "average": average,
            "reduction": reduction,
            "num_gradients": num_gradients,
            "seed": seed,
        }
        colleagues = Colleagues.meet(
            {name: shown(value) for name, value in compared.items()} | {"model": str(form)},
            workers=workers,
        )
        workers = colleagues.size
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
    kind = HogwildJob if settings.is_hogwild else Job
    job = kind(
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

    def keeper() -> Keeper | None:
        if checkpoint is None:
            return None
        return Keeper(checkpoint, settings, form, rows=table.num_rows)

    if colleagues is not None:
        return colleagues.train(settings, job, form.copies(model), judge, keeper)
    return train(settings, job, form.copies(model), judge, keeper())


def _gradient_form(form: Form, count: int | None) -> Form:
    if count is None:
        return form
    if not isinstance(count, int) or not 1 <= count <= len(form.shapes):
        raise UsageError(
            f"num_gradients={count!r}: give of how many of the model's {len(form.shapes)} entries, "
            f"from the first, update returns a gradient"
        )
    return form.first(count)


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
