# SPDX-License-Identifier: Apache-2.0
"""Notices when models or optimizers are rebuilt after `prepare`, which would break the units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gangline.runtime.layout import Layout, optimizer_parameters
from gangline.spec.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence


class LayoutGuard:
    """Compares the parameters with those that were prepared: a few microseconds per step."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        layout: Layout,
    ) -> None:
        self._owners: list[tuple[dict[str, Any], str, nn.Parameter]] = [
            (module._parameters, name, parameter)
            for model in models
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        self._optimizers = [(opt, [id(p) for p in optimizer_parameters(opt)]) for opt in optimizers]
        self._slots = layout.slots
        self._addresses = [slot.parameter.data_ptr() for slot in self._slots]
        self._forms = [_form(slot.parameter) for slot in self._slots]

    def check(self) -> None:
        """Raises if a parameter was replaced, moved to another dtype or layout, or added."""
        for parameters, name, parameter in self._owners:
            if parameters.get(name) is not parameter:
                raise UnsupportedError(
                    f"parameter {name!r} was replaced by another object after prepare(), as "
                    "load_state_dict(assign=True) does: load with assign=False, or load first and "
                    "prepare afterwards"
                )
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
