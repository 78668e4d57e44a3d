# SPDX-License-Identifier: Apache-2.0
"""Notices when models or optimizers are rebuilt after `prepare`, which would break the units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gangline.spec.errors import UnsupportedError
from gangline.worker.checks.foreign import ForeignExchange, library_of
from gangline.worker.gradients.layout import Layout, optimizer_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.worker.checks.hooks import GradientHooks


class LayoutGuard:
    """Compares the parameters with those that were prepared: a few microseconds per step."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        layout: Layout,
        foreign: ForeignExchange,
        hooks: GradientHooks,
    ) -> None:
        self._models = models
        self._owners: list[tuple[dict[str, Any], str, nn.Parameter]] = [
            (module._parameters, name, parameter)
            for model in models
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        self._optimizers = [(opt, [id(p) for p in optimizer_parameters(opt)]) for opt in optimizers]
        self._foreign = foreign
        self._hooks = hooks
        self._slots = layout.slots
        self._addresses = [slot.parameter.data_ptr() for slot in self._slots]
        self._forms = [_form(slot.parameter) for slot in self._slots]

    def check(self) -> None:
        """Raises if a parameter was replaced, moved to another dtype or layout, or added.

        Also if its gradient is exchanged by somebody else.
        """
        self._foreign.check()
        for parameters, name, parameter in self._owners:
            if parameters.get(name) is not parameter:
                raise UnsupportedError(self._replaced(name))
        for optimizer, known in self._optimizers:
            if [id(p) for p in optimizer_parameters(optimizer)] != known:
                raise UnsupportedError(
                    f"the parameters of the {type(optimizer).__name__} optimizer changed after "
                    "prepare(), as add_param_group does: add all groups first (freeze what shall not "
                    "train yet with requires_grad_(False)) and prepare afterwards"
                )
        addresses = [slot.parameter.data_ptr() for slot in self._slots]
        if addresses != self._addresses:
            self._check_forms()
            self._addresses = addresses
        self._hooks.look()

    def _replaced(self, name: str) -> str:
        # fully_shard gives modules another class, and shows parameters whole in a backward pass.
        if any(library_of(type(one)) for model in self._models for one in model.modules()):
            return (
                f"parameter {name!r} was sharded after prepare(), as fully_shard does: its passes "
                "communicate, and gangline exchanges the gradients itself. Leave that out: gangline "
                "trains models that are whole on every worker"
            )
        return (
            f"parameter {name!r} was replaced by another object after prepare(), as "
            "load_state_dict(assign=True) does: load with assign=False, or load first and "
            "prepare afterwards"
        )

    def _check_forms(self) -> None:
        for slot, form in zip(self._slots, self._forms, strict=True):
            if _form(slot.parameter) != form:
                raise UnsupportedError(
                    f"parameter {slot.name!r} changed from {_describe(form)} to "
                    f"{_describe(_form(slot.parameter))} after prepare(): call model.to(...) before "
                    "prepare()"
                )


Form = tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]]


def _form(parameter: nn.Parameter) -> Form:
    return parameter.dtype, parameter.device, parameter.size(), parameter.stride()


def _describe(form: Form) -> str:
    dtype, device, shape, strides = form
    return f"{dtype} {tuple(shape)} on {device} with strides {strides}"
