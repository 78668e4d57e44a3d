# SPDX-License-Identifier: Apache-2.0
"""The canonical layout of the gradients: flat units in an order that all workers agree on.

Parameters are taken in the reverse order of the models' and optimizers' own (gradients become ready
roughly in that order), and packed into units of a few megabytes. A unit holds one dtype and device,
parameters of one model, and either frozen or trainable ones: so frozen parameters cost nothing until
somebody unfreezes them, and the two halves of a GAN never travel for each other.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gangline.spec.errors import UnsupportedError
from gangline.worker.gradients.tables import tables_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UNIT_BYTES = 4 << 20
"""Small enough that the first unit leaves early in the backward pass, large enough that the fixed
cost of an exchange does not count."""
MAX_UNIT_BYTES, MOST_UNITS = 16 << 20, 12
"""Units of a large model are larger, up to so much, where there would be more than so many: the thread
that exchanges them must keep up with the backward pass, and each takes Python's lock from it."""
_LEAST_PART = 0.25
"""A unit with less than this part of what it may hold is not closed, however large the next parameter
is: biases between large weights would have units of their own."""


LARGE_BYTES = 256 << 10
"""From here on moving a gradient costs more than the call that moves it, in the memory of the host.
A GPU takes longer to be asked than to move any of them: there all of a unit are moved together."""


class Content(enum.Enum):
    """What a parameter's place in its unit holds."""

    EMPTY = enum.auto()
    """Nothing that counts."""
    LOCAL = enum.auto()
    """This worker's weighted gradient, not yet exchanged."""
    GLOBAL = enum.auto()
    """The exchanged gradient, the same on all workers."""


@dataclass(slots=True, eq=False)
class Slot:
    """One parameter's place in a unit."""

    name: str
    parameter: nn.Parameter
    offset: int
    view: Tensor | None = None
    """The parameter's gradient, as a view into the unit; None until the unit is allocated."""
    content: Content = Content.EMPTY
    fired: bool = False
    """Whether the current backward pass has produced its gradient."""
    rows: Tensor | None = None
    """Of a gradient that was sparse: the rows that it has, in rising order; the place is zero in all
    others. None: it has all."""
    is_table: bool = False
    """Whether its layer asks for sparse gradients."""
    is_large: bool = field(init=False)

    def __post_init__(self) -> None:
        num_bytes = self.parameter.numel() * self.parameter.itemsize
        self.is_large = num_bytes >= LARGE_BYTES and not self.parameter.is_cuda

    @property
    def place(self) -> Tensor:
        """The view, of a unit that is allocated."""
        assert self.view is not None
        return self.view

    @property
    def gradient(self) -> Tensor:
        """The parameter's gradient, where it has one."""
        gradient = self.parameter.grad
        assert gradient is not None
        return gradient


@dataclass(slots=True, eq=False)
class Unit:
    """The piece of the gradient that is exchanged at once."""

    index: int
    dtype: torch.dtype
    device: torch.device
    slots: list[Slot] = field(default_factory=list)
    length: int = 0
    flat: Tensor | None = None

    @property
    def table(self) -> Slot | None:
        """The table that it holds, which is alone in it."""
        return self.slots[0] if self.slots[0].is_table else None

    @property
    def small_slots(self) -> list[Slot]:
        return [slot for slot in self.slots if not slot.is_large]

    def allocate(self) -> Tensor:
        """The unit's memory, with a view for each parameter, in that parameter's own strides."""
        if self.flat is None:
            self.flat = torch.zeros(self.length, dtype=self.dtype, device=self.device)
            for slot in self.slots:
                parameter = slot.parameter
                slot.view = self.flat.as_strided(parameter.size(), parameter.stride(), slot.offset)
        return self.flat


@dataclass(frozen=True, slots=True)
class Layout:
    """All units, and what must be equal on all workers for their sums to mean anything."""

    units: tuple[Unit, ...]
    signature: tuple[str, ...]
    """One line per parameter: name, shape, dtype, strides, frozen or not."""

    @property
    def slots(self) -> list[Slot]:
        return [slot for unit in self.units for slot in unit.slots]

    @property
    def num_parameters(self) -> int:
        return sum(slot.parameter.numel() for slot in self.slots)

    @property
    def digest(self) -> str:
        """A short name of the layout: equal if and only if the layouts are."""
        return hashlib.sha256("\n".join(self.signature).encode()).hexdigest()[:16]


def build_layout(
    models: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    unit_bytes: int | None = None,
) -> Layout:
    """Packs the parameters of `models` and `optimizers`, each once, into units."""
    parameters = list(_named_parameters(models, optimizers))
    if unit_bytes is None:
        total = sum(parameter.numel() * parameter.itemsize for *_, parameter in parameters)
        unit_bytes = min(max(UNIT_BYTES, total // MOST_UNITS), MAX_UNIT_BYTES)
    units: list[Unit] = []
    open_units: dict[tuple[int, torch.dtype, torch.device, bool], Unit] = {}
    signature = []
    tables = tables_in(models)
    for owner, name, parameter in reversed(parameters):
        _check_dense(name, parameter)
        signature.append(
            f"{name} {tuple(parameter.shape)} {parameter.dtype} {parameter.stride()} "
            f"{'trainable' if parameter.requires_grad else 'frozen'}"
            f"{' by rows' if id(parameter) in tables else ''}"
        )
        if id(parameter) in tables:
            units.append(_unit_of_table(len(units), name, parameter))
            continue
        key = (owner, parameter.dtype, parameter.device, parameter.requires_grad)
        unit = open_units.get(key)
        if unit is None or _is_full(unit, parameter, unit_bytes):
            unit = Unit(len(units), parameter.dtype, parameter.device)
            units.append(unit)
            open_units[key] = unit
        unit.slots.append(Slot(name, parameter, unit.length))
        unit.length += parameter.numel()
    return Layout(tuple(units), tuple(signature))


def _unit_of_table(index: int, name: str, parameter: nn.Parameter) -> Unit:
    slot = Slot(name, parameter, 0, is_table=True)
    return Unit(index, parameter.dtype, parameter.device, [slot], parameter.numel())


def _is_full(unit: Unit, following: nn.Parameter, unit_bytes: int) -> bool:
    """Whether the parameter that follows needs another unit."""
    num_bytes = unit.length * following.itemsize
    together = num_bytes + following.numel() * following.itemsize
    return together > unit_bytes and num_bytes >= _LEAST_PART * unit_bytes


def _named_parameters(
    models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> Iterable[tuple[int, str, nn.Parameter]]:
    seen: set[int] = set()
    for index, model in enumerate(models):
        prefix = f"model {index}: " if len(models) > 1 else ""
        for name, parameter in model.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield index, prefix + name, parameter
    for index, optimizer in enumerate(optimizers):
        for number, parameter in enumerate(optimizer_parameters(optimizer)):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield len(models) + index, f"optimizer {index}: parameter {number}", parameter


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """All parameters of an optimizer, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _check_dense(name: str, parameter: nn.Parameter) -> None:
    """A gradient can be a view with its parameter's strides only if those leave no holes."""
    if parameter.layout != torch.strided:
        raise UnsupportedError(
            f"parameter {name!r} has layout {parameter.layout}; only dense parameters can be "
            "exchanged: use sparse=False, or leave this model out of prepare()"
        )
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.size(), strict=True)):
        if size > 1:
            if stride != expected:
                raise UnsupportedError(
                    f"parameter {name!r} of shape {tuple(parameter.shape)} has strides "
                    f"{parameter.stride()}, which overlap or leave holes: replace it by "
                    "parameter.contiguous() before prepare()"
                )
            expected *= size
