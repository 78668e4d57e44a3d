# SPDX-License-Identifier: Apache-2.0
"""How entries change a shard's parameters: the weighted sum of gradients, and a step by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from gangline.paramserver.service import optimizers
from gangline.paramserver.service.pushes import Gradient, Push, Rows, dense, sparse, weighted_sum
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.optim import Optimizer

Mode = Literal["gradients", "differences"]
Rate = Literal["plain", "staleness"]
_NOTHING = torch.empty(0, dtype=torch.int64)


class Updates:
    """The parameters of a shard, in main memory, and the optimizer for these alone."""

    def __init__(
        self,
        originals: Sequence[Tensor],
        optimizer: Optimizer | None,
        *,
        names: Sequence[str],
        mode: Mode,
        rate: Rate,
    ) -> None:
        _check_options(mode, rate, optimizer)
        self.parameters = [nn.Parameter(_copy_of(p)) for p in originals]
        self._rate = rate
        self._groups: tuple[int, ...] = ()
        self._optimizer: Optimizer | None = None
        if optimizer is not None and mode == "gradients":
            optimizers.check_shardable(optimizer)
            _check_known(optimizer, originals, names)
            own = {id(p): mine for p, mine in zip(originals, self.parameters, strict=True)}
            self._optimizer, self._groups = optimizers.clone(optimizer, own)

    def check_options(self, options: Sequence[optimizers.Options]) -> None:
        """Refuses options that its optimizer does not have."""
        if self._optimizer is not None:
            optimizers.check_options(self._optimizer, self._groups, options)

    def apply(self, parts: Sequence[tuple[float, Push]], staleness: int) -> list[Tensor | None]:
        """One update by the weighted sum of what was pushed, with the options of the last one.

        Returns which rows of each parameter it has changed, at most; None: all.
        """
        sums = [
            weighted_sum([(weight, push.gradients[place]) for weight, push in parts], parameter)
            for place, parameter in enumerate(self.parameters)
        ]
        if self._optimizer is None:
            self._add(sums)
            return [_rows_of(total) for total in sums]
        if not parts:
            return [_NOTHING] * len(sums)
        optimizers.set_options(self._optimizer, self._groups, parts[-1][1].options)
        self._step(self._optimizer, sums, staleness)
        by_rows = _takers(self._optimizer)
        changes = zip(self.parameters, sums, strict=True)
        return [_rows_of(total) if by_rows[id(p)] else None for p, total in changes]

    def set_values(self, values: Sequence[Tensor]) -> None:
        """Other values, of the same shapes."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value)

    def state(self) -> list[dict[str, Any] | None]:
        """A copy of the optimizer's state of each parameter; None: it has none."""
        state = {} if self._optimizer is None else self._optimizer.state
        return [optimizers.on_cpu(state[p]) if p in state else None for p in self.parameters]

    def options(self) -> dict[int, optimizers.Options]:
        """The options of its parameter groups, by their numbers in the user's optimizer."""
        if self._optimizer is None:
            return {}
        return dict(zip(self._groups, optimizers.options_of(self._optimizer), strict=True))

    def load(
        self, state: Sequence[dict[str, Any] | None], options: Mapping[int, optimizers.Options]
    ) -> None:
        """Another one's state and options."""
        if self._optimizer is None:
            return
        numbered = [options.get(number, {}) for number in range(max(self._groups, default=-1) + 1)]
        optimizers.set_options(self._optimizer, self._groups, numbered)
        self._optimizer.state.clear()
        for parameter, given in zip(self.parameters, state, strict=True):
            if given is not None:
                self._optimizer.state[parameter] = dict(given)

    def _step(self, optimizer: Optimizer, sums: Sequence[Gradient], staleness: int) -> None:
        self._set_gradients(optimizer, sums)
        slowed = optimizer.param_groups if self._rate == "staleness" else []
        rates = [group["lr"] for group in slowed]
        for group in slowed:
            group["lr"] = group["lr"] / (1 + staleness)
        try:
            optimizers.make_step(optimizer)
        finally:
            for group, rate in zip(slowed, rates, strict=True):
                group["lr"] = rate
            for parameter in self.parameters:
                parameter.grad = None

    def _set_gradients(self, optimizer: Optimizer, sums: Sequence[Gradient]) -> None:
        by_rows = _takers(optimizer)
        for parameter, total in zip(self.parameters, sums, strict=True):
            if total is None:
                continue
            is_sparse = isinstance(total, Rows) and by_rows[id(parameter)]
            way = sparse if is_sparse or optimizers.wants_sparse(optimizer) else dense
            parameter.grad = way(total, parameter)

    def _add(self, sums: Sequence[Gradient]) -> None:
        with torch.no_grad():
            for parameter, total in zip(self.parameters, sums, strict=True):
                if isinstance(total, Rows):
                    parameter.index_add_(0, total.indices, total.values)
                elif total is not None:
                    parameter.add_(total)


def _takers(optimizer: Optimizer) -> dict[int, bool]:
    """Whether each parameter is updated by rows, where its gradient has rows, and else left alone."""
    return {
        id(p): optimizers.takes_sparse(optimizer, group)
        for group in optimizer.param_groups
        for p in group["params"]
    }


def _rows_of(total: Gradient) -> Tensor | None:
    """The rows that this adds to; None: all."""
    if total is None:
        return _NOTHING
    return total.indices if isinstance(total, Rows) else None


def _copy_of(parameter: Tensor) -> Tensor:
    return parameter.detach().to("cpu", copy=True).contiguous()


def _check_known(optimizer: Optimizer, parameters: Sequence[Tensor], names: Sequence[str]) -> None:
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [n for p, n in zip(parameters, names, strict=True) if id(p) not in known]
    if missing:
        raise UsageError(
            f"{missing[0]} is served, and {type(optimizer).__name__} does not update it: give the "
            "optimizer all parameters that are trained"
        )


def _check_options(mode: str, rate: str, optimizer: Optimizer | None) -> None:
    if mode not in ("gradients", "differences"):
        raise UsageError(f"mode is 'gradients' or 'differences', not {mode!r}")
    if rate not in ("plain", "staleness"):
        raise UsageError(f"rate is 'plain' or 'staleness', not {rate!r}")
    if mode == "gradients" and optimizer is None:
        raise UsageError("a shard that is given gradients needs an optimizer")
    if mode == "differences" and rate != "plain":
        raise UsageError("rate is about gradients: who pushes differences has updated by itself")
    if rate == "staleness" and optimizer is not None:
        for number, group in enumerate(optimizer.param_groups):
            if "lr" not in group:
                raise UsageError(
                    f"parameter group {number} of {type(optimizer).__name__} has no lr that could "
                    "go by the staleness: choose rate='plain'"
                )
