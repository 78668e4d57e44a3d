# SPDX-License-Identifier: Apache-2.0
"""Rows of sparse gradients, as they are pushed and as the script's own optimizer takes them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from gangline.paramserver.service.changes import union
from gangline.paramserver.service.optimizers import takes_sparse, wants_sparse
from gangline.paramserver.service.pushes import put_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

Changed = dict[int, "Tensor | None"]
"""By the parameter's number: which rows have changed, in main memory; None: perhaps all of them. Those
that are not named have not changed."""


def by_rows(gradient: Tensor | None, rows: Tensor | None) -> Tensor | None:
    """The gradient as a sparse one, where only these rows of it count."""
    if gradient is None or rows is None:
        return gradient
    return torch.sparse_coo_tensor(
        rows[None], gradient[rows], gradient.shape, is_coalesced=True, check_invariants=False
    )


def joined(one: Mapping[int, Tensor | None], other: Mapping[int, Tensor | None]) -> Changed:
    """What has changed by one or the other."""
    both = {index: union(one[index], other[index]) for index in one.keys() & other.keys()}
    return {**one, **other, **both}


@contextmanager
def sparse_gradients(optimizer: Optimizer, rows: Mapping[int, Tensor]) -> Iterator[Changed]:
    """Inside, parameters have sparse gradients where the optimizer's step updates by rows.

    Gives which rows of which parameters the step changes, by their place in the optimizer.
    """
    changed: Changed = {}
    shown: list[tuple[Tensor, Tensor | None]] = []
    parameters = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    try:
        for index, (parameter, group) in enumerate(parameters):
            found = rows.get(id(parameter))
            takes = takes_sparse(optimizer, group)
            if found is not None and (takes or wants_sparse(optimizer)):
                shown.append((parameter, parameter.grad))
                parameter.grad = by_rows(parameter.grad, found)
            if not takes:
                changed[index] = None
            elif parameter.grad is not None:
                changed[index] = None if found is None else found.cpu()
        yield changed
    finally:
        for parameter, gradient in shown:
            parameter.grad = gradient


class LocalChanges:
    """What a worker that updates by itself has changed since it last pushed or pulled."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self.base: list[Tensor] = []
        """The parameters without what is to be pushed."""
        self.changed: Changed = {}
        """The rows in which the parameters differ from it."""

    def begin(self, base: Sequence[Tensor] | None = None) -> None:
        """Nothing is to be pushed; or, of another worker's base, whatever differs from it."""
        if base is None:
            self.base, self.changed = [p.detach().clone() for p in self._parameters], {}
        else:
            self.base = list(base)
            self.changed = dict.fromkeys(range(len(self.base)))

    def note(self, changed: Mapping[int, Tensor | None]) -> None:
        """A step has changed this."""
        self.changed = joined(self.changed, changed)

    def differences(self) -> list[Tensor | None]:
        """What is to be pushed: of each parameter whole, by rows, or nothing."""
        return [self._difference(index) for index in range(len(self._parameters))]

    def _difference(self, index: int) -> Tensor | None:
        if index not in self.changed:
            return None
        rows, parameter = self.changed[index], self._parameters[index].detach()
        if rows is None:
            return parameter - self.base[index]
        rows = rows.to(parameter.device)
        return torch.sparse_coo_tensor(
            rows[None],
            parameter[rows] - self.base[index][rows],
            parameter.shape,
            is_coalesced=True,
            check_invariants=False,
        )

    def rebase(self, written: Mapping[int, Tensor | None]) -> None:
        """The parameters as they are now are the base; beside own changes, these rows were written."""
        for index, rows in joined(self.changed, written).items():
            parameter = self._parameters[index].detach()
            if rows is None:
                self.base[index] = parameter.clone()
            else:
                put_rows(self.base[index], rows, parameter[rows.to(parameter.device)])
        self.changed = {}

    def add(self, differences: Sequence[Tensor | None]) -> None:
        """Changes that are not pushed yet are made once more, on top of what was pulled."""
        for index, change in enumerate(differences):
            if change is None:
                continue
            self._parameters[index].data.add_(change)
            is_whole = change.layout == torch.strided
            self.changed[index] = None if is_whole else change.indices()[0].cpu()
