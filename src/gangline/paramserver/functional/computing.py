# SPDX-License-Identifier: Apache-2.0
"""What a worker does with its portion: the user's functions, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.local.table import Table
from gangline.paramserver.functional.leaves import Form, Leaves, combine
from gangline.spec.errors import FunctionError

if TYPE_CHECKING:
    from gangline.paramserver.functional.ledger import Portion


class Outcome(msgspec.Struct, frozen=True):
    """What a worker pushes."""

    leaves: Leaves
    """The sum of its batches' gradients, or the model that it came to."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker needs, in whichever process it is."""

    update: Callable[..., Any]
    aggregate: Callable[..., Any]
    hyperparameters: Any
    features: Table
    labels: Table
    model_form: Form
    gradient_form: Form
    pushes_models: bool

    def compute(self, worker: int, portion: Portion, model: Leaves) -> Outcome:
        """The update that comes of a portion. The model is left as it is."""
        total: Leaves | None = None
        for number, rows in enumerate(portion.batches):
            what = place(worker, portion, number)
            gradients = self._gradients(model, rows, what)
            total = gradients if total is None else combine([(1.0, total), (1.0, gradients)])
            if self.pushes_models or number + 1 < len(portion.batches):
                model = self.step(model, gradients, what)
        assert total is not None, "a portion has at least one batch"
        return Outcome(model if self.pushes_models else total)

    def step(self, model: Leaves, gradients: Leaves, what: str) -> Leaves:
        """The model after `aggregate`. Every call has copies of its own, and may change them."""
        arguments = (self.model_form.build(model), self.hyperparameters)
        with_these = (*arguments, self.gradient_form.build(gradients))
        found = call("aggregate", self.aggregate, with_these, what)
        return self.model_form.leaves(found, f"the model that aggregate returned for {what}")

    def _gradients(self, model: Leaves, rows: Any, what: str) -> Leaves:
        batch = (self.features.take(rows), self.labels.take(rows))
        arguments = (self.model_form.build(model), self.hyperparameters, *batch)
        found = call("update", self.update, arguments, what)
        return self.gradient_form.leaves(found, f"the gradients that update returned for {what}")


def place(worker: int, portion: Portion, number: int) -> str:
    """Which batch it is, for a person."""
    batch = portion.first_batch + number + 1
    whose = "" if worker == portion.owner else f" of worker {portion.owner}"
    return f"worker {worker} (epoch {portion.epoch + 1}, batch {batch}{whose})"


def call(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], what: str) -> Any:
    """Calls the user's function; what it raises is told with where it happened."""
    try:
        return function(*arguments)
    except Exception as error:
        raise FunctionError(f"{name} failed for {what}: {type(error).__name__}: {error}") from error
