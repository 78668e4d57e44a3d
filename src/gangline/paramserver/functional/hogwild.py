# SPDX-License-Identifier: Apache-2.0
"""Hogwild: threads that share one model, and change it in place without a lock.

Whoever reads may see one array before and another after somebody's step, and of two that write the same
numbers at once one may be lost. That is meant: where steps touch few rows each, it happens rarely.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gangline.paramserver.functional.computing import Job, Outcome, call, place
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from gangline.paramserver.functional.leaves import Leaves
    from gangline.paramserver.functional.ledger import Portion


class HogwildJob(Job, frozen=True, kw_only=True):
    """A worker's part, and the server's: both are done where the batch is computed."""

    def compute(self, worker: int, portion: Portion, model: Leaves) -> Outcome:
        """Goes through the portion's batches; the model is changed when this returns."""
        for number, rows in enumerate(portion.batches):
            what = place(worker, portion, number)
            batch = (self.features.take(rows), self.labels.take(rows))
            gradients = call("update", self.update, (*self._shared(model), *batch), what)
            found = call("aggregate", self.aggregate, (*self._shared(model), gradients), what)
            if found is not None:
                self._write(model, found, f"the model that aggregate returned for {what}")
        return Outcome([])

    def _shared(self, model: Leaves) -> tuple[Any, Any]:
        """The shared arrays, by handles of this call's own."""
        return self.model_form.hold([_handle(leaf) for leaf in model]), self.hyperparameters

    def _write(self, model: Leaves, found: Any, what: str) -> None:
        """What `aggregate` returned: arrays that it changed in place, others, or rows of them."""
        for leaf, (name, entry) in zip(
            model, self.model_form.named_entries(found, what), strict=True
        ):
            if isinstance(entry, Mapping):
                _write_rows(leaf, entry, f"entry {name!r} of {what}")
            elif not _is_same(leaf, entry):
                leaf[...] = self.model_form.checked(name, entry, what)


def _handle(leaf: Any) -> Any:
    """The same memory. A tensor's handle has its own account of changes: those of other threads are
    meant, and a backward pass must not stumble over them."""
    return leaf.view() if isinstance(leaf, np.ndarray) else leaf.data


def _is_same(leaf: Any, entry: Any) -> bool:
    """Whether an entry is the shared memory itself."""
    if type(entry) is not type(leaf) or entry.shape != leaf.shape:
        return False
    if isinstance(leaf, np.ndarray):
        return bool(entry.ctypes.data == leaf.ctypes.data and entry.strides == leaf.strides)
    return bool(entry.data_ptr() == leaf.data_ptr() and entry.stride() == leaf.stride())


def _write_rows(leaf: Any, rows: Mapping[Any, Any], what: str) -> None:
    for row, values in rows.items():
        try:
            leaf[row] = values
        except (IndexError, TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"{what} has row {row!r}, which cannot be written into {tuple(leaf.shape)}: {error}; "
                "give a dict of row numbers and their new values"
            ) from error
