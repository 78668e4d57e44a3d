# SPDX-License-Identifier: Apache-2.0
"""What is pushed: a gradient per parameter, dense, by rows, or none; its checks and its sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from gangline.collectives.elements import flat_of
from gangline.spec.errors import GradientError, MismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.paramserver.service.optimizers import Options

_HALVES = (torch.float16, torch.bfloat16)


class Rows(NamedTuple):
    """Some rows of a gradient; all others are zero. No row is there twice."""

    indices: Tensor
    values: Tensor


Gradient = Tensor | Rows | None


class Push(NamedTuple):
    """What a team pushes to one shard at one clock."""

    gradients: tuple[Gradient, ...]
    """One for each parameter of the shard, in its order."""
    options: tuple[Options, ...] = ()
    """What the worker's optimizer says in each parameter group; empty: as before."""


def gradient_of(gradient: Tensor | None) -> Gradient:
    """A parameter's `.grad` as it is pushed: in main memory, a sparse one by its rows."""
    if gradient is None:
        return None
    gradient = gradient.detach()
    if gradient.layout == torch.strided:
        return gradient.cpu()
    if gradient.sparse_dim() != 1:
        return gradient.to_dense().cpu()
    whole = gradient.coalesce()
    return Rows(whole.indices()[0].cpu(), whole.values().cpu())


def copied(gradient: Gradient) -> Gradient:
    """A copy of its own."""
    if isinstance(gradient, Rows):
        return Rows(gradient.indices.clone(), gradient.values.clone())
    return gradient.clone() if isinstance(gradient, Tensor) else gradient


def copy_into(parameter: Tensor, value: Tensor) -> None:
    """Writes a value of the same type into a parameter.

    In main memory by one thread: torch's own copy wakes a pool of threads, which on a busy machine
    costs many times what it saves.
    """
    if not parameter.is_cpu or not parameter.is_contiguous():
        parameter.copy_(value)
        return
    np.copyto(flat_of(parameter).array, flat_of(value.contiguous()).array)
    increment_version(
        parameter
    )  # as if torch had written it: a graph that needs the old value says so


def put_rows(parameter: Tensor, rows: Tensor, values: Tensor) -> None:
    """Writes some rows of a parameter, on whatever device it is."""
    if len(rows):
        parameter[rows.to(parameter.device)] = values.to(parameter.device)


def check_gradient(gradient: Gradient, parameter: Tensor, name: str) -> None:
    """Refuses a gradient that does not fit its parameter, or is not finite."""
    if gradient is None:
        return
    check_fit(gradient, parameter, name)
    if not is_finite(gradient.values if isinstance(gradient, Rows) else gradient):
        raise GradientError(
            f"the push for {name} has values that are not finite: nothing of it was kept. Lower the "
            "learning rate, or scale the loss"
        )


def check_fit(gradient: Tensor | Rows, parameter: Tensor, name: str) -> None:
    """Refuses what has another shape or another type than its parameter."""
    expected: tuple[int, ...] = tuple(parameter.shape)
    if isinstance(gradient, Rows):
        check_rows(gradient.indices, parameter, name)
        expected = (len(gradient.indices), *expected[1:])
    values = gradient.values if isinstance(gradient, Rows) else gradient
    if tuple(values.shape) != expected or values.dtype != parameter.dtype:
        raise MismatchError(
            f"{name} is given as {_shown(values.shape, values.dtype)}, where the server has "
            f"{_shown(expected, parameter.dtype)}: all workers must train the same model"
        )


def check_rows(indices: Tensor, parameter: Tensor, name: str) -> None:
    """Refuses rows that the parameter does not have, or that do not rise."""
    if indices.dtype != torch.int64 or indices.dim() != 1 or parameter.dim() == 0:
        raise MismatchError(
            f"rows of {name} are named by a list of int64, not by "
            f"{_shown(indices.shape, indices.dtype)}"
        )
    if not len(indices):
        return
    if bool((indices.diff() <= 0).any()):
        raise MismatchError(f"the rows of {name} must rise, each of them once")
    low, high = int(indices[0]), int(indices[-1])
    if low < 0 or high >= len(parameter):
        raise MismatchError(
            f"rows {low} to {high} of {name} are named, which has the rows 0 to {len(parameter) - 1}"
        )


def is_finite(values: Tensor) -> bool:
    """Whether all values are: one sum tells, unless it overflows."""
    if not values.is_floating_point() or not values.numel():
        return True
    total = values.sum(dtype=torch.float64 if values.dtype == torch.float64 else torch.float32)
    return bool(torch.isfinite(total)) or bool(torch.isfinite(values).all())


def weighted_sum(parts: Sequence[tuple[float, Gradient]], parameter: Tensor) -> Gradient:
    """The gradient of one step: what no part has is none, rows stay rows while all parts are."""
    given = [(weight, gradient) for weight, gradient in parts if gradient is not None]
    if not given:
        return None
    if len(given) == 1 and given[0][0] == 1.0:
        return given[0][1]
    if all(isinstance(gradient, Rows) for _, gradient in given):
        return _sum_of_rows([(weight, g) for weight, g in given if isinstance(g, Rows)], parameter)
    return _sum([(weight, dense(g, parameter)) for weight, g in given])


def _sum(parts: Sequence[tuple[float, Tensor]]) -> Tensor:
    """Halves are summed in float32 and rounded once."""
    (weight, first), *others = parts
    if first.dtype in _HALVES:
        wide = first.float() * weight
        for factor, other in others:
            wide.add_(other.float(), alpha=factor)
        return wide.to(first.dtype)
    total = first * weight
    for factor, other in others:
        total.add_(other, alpha=factor)
    return total


def _sum_of_rows(parts: Sequence[tuple[float, Rows]], parameter: Tensor) -> Rows:
    wide = torch.float32 if parameter.dtype in _HALVES else parameter.dtype
    indices = torch.cat([rows.indices for _, rows in parts])
    values = torch.cat([rows.values.to(wide) * weight for weight, rows in parts])
    unique, places = torch.unique(indices, return_inverse=True)
    total = values.new_zeros((len(unique), *parameter.shape[1:])).index_add_(0, places, values)
    return Rows(unique, total.to(parameter.dtype))


def dense(gradient: Tensor | Rows, parameter: Tensor) -> Tensor:
    """The whole gradient."""
    if not isinstance(gradient, Rows):
        return gradient
    whole = torch.zeros(parameter.shape, dtype=parameter.dtype)
    return whole.index_copy_(0, gradient.indices, gradient.values)


def sparse(gradient: Tensor | Rows, parameter: Tensor) -> Tensor:
    """The gradient as torch's optimizers take it by rows."""
    if not isinstance(gradient, Rows):
        return gradient.to_sparse(1)
    return torch.sparse_coo_tensor(
        gradient.indices[None],
        gradient.values,
        tuple(parameter.shape),
        is_coalesced=True,
        check_invariants=False,
    )


def compensated(gradient: Gradient, factor: float, now: Tensor, then: Tensor) -> Gradient:
    """g + λ·g·g·(now − then), the gradient at `now` to the first order (DC-ASGD)."""
    if gradient is None:
        return None
    if isinstance(gradient, Rows):
        indices, values = gradient
        return Rows(indices, values + factor * values * values * (now[indices] - then[indices]))
    return gradient + factor * gradient * gradient * (now - then)


def push_of(parts: Sequence[Any]) -> Push:
    """A push from its parts as they travel: rows are pairs."""
    gradients, options = parts
    return Push(tuple(gradient_from(given) for given in gradients), tuple(options))


def gradient_from(given: Any) -> Gradient:
    """A gradient as it travels: rows are a pair. One that is coded stays so."""
    return Rows(*given) if isinstance(given, list | tuple) else given


def _shown(shape: Any, dtype: torch.dtype) -> str:
    return f"{tuple(shape)} of {str(dtype).removeprefix('torch.')}"
