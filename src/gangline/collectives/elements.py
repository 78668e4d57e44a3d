# SPDX-License-Identifier: Apache-2.0
"""Tensors as flat arrays of elements in host memory, and the sums over them.

Sums run on numpy arrays: one thread, no worker pool, the interpreter lock released. Half precision
travels as 16-bit patterns and is summed in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = npt.NDArray[Any]


class Element(NamedTuple):
    """How one torch dtype is carried."""

    code: int
    raw: np.dtype[Any]
    summable: bool


ELEMENTS: dict[torch.dtype, Element] = {
    torch.float32: Element(1, np.dtype(np.float32), True),
    torch.float64: Element(2, np.dtype(np.float64), True),
    torch.bfloat16: Element(3, np.dtype(np.int16), True),
    torch.float16: Element(4, np.dtype(np.int16), True),
    torch.int64: Element(5, np.dtype(np.int64), True),
    torch.int32: Element(6, np.dtype(np.int32), True),
    torch.uint8: Element(7, np.dtype(np.uint8), False),
    torch.int8: Element(8, np.dtype(np.int8), False),
    torch.int16: Element(9, np.dtype(np.int16), False),
    torch.bool: Element(10, np.dtype(np.bool_), False),
}
TYPE_NAMES = {
    element.code: str(dtype).removeprefix("torch.") for dtype, element in ELEMENTS.items()
}
QUIET: dict[str, Any] = {"over": "ignore", "invalid": "ignore"}
"""For numpy.errstate: a sum that overflows is infinite, as in torch, and no reason to warn."""
HALVES = frozenset({torch.bfloat16, torch.float16})


class Flat(NamedTuple):
    """The elements of a tensor in host memory, in a row."""

    array: Array
    dtype: torch.dtype

    @property
    def code(self) -> int:
        return ELEMENTS[self.dtype].code


def element_of(tensor: Tensor, *, summed: bool) -> Element:
    """How the tensor is carried; a UsageError where it cannot be."""
    element = ELEMENTS.get(tensor.dtype)
    if element is None or (summed and not element.summable):
        can = [str(d) for d, e in ELEMENTS.items() if e.summable or not summed]
        raise UsageError(
            f"the wire transport cannot {'sum' if summed else 'carry'} {tensor.dtype}; "
            f"convert the tensor to one of {', '.join(can)}"
        )
    if tensor.layout != torch.strided:
        raise UsageError(f"the wire transport carries dense tensors only, not {tensor.layout}")
    return element


def flat_of(tensor: Tensor) -> Flat:
    """A contiguous tensor in host memory as a flat array over the same memory."""
    row = tensor.detach() if tensor.requires_grad else tensor
    if row.dim() != 1:
        row = row.view(-1)
    if tensor.dtype in HALVES:
        row = row.view(torch.int16)
    return Flat(row.numpy(), tensor.dtype)


def _as_half(array: Array, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(array).view(dtype)


def widen(flat: Flat) -> Array:
    """The elements of half precision as a float32 array of their own."""
    wide: Array = _as_half(flat.array, flat.dtype).to(torch.float32).numpy()
    return wide


def narrow_into(out: Array, wide: Array, dtype: torch.dtype) -> None:
    """Rounds float32 to the half precision of `out`."""
    _as_half(out, dtype).copy_(torch.from_numpy(wide))


def sum_into(out: Array, terms: Sequence[Array], dtype: torch.dtype) -> None:
    """out = terms[0] + terms[1] + …, in this order; `out` may be the first term."""
    if not out.size:
        return
    if dtype in HALVES:
        total = _as_half(terms[0], dtype).to(torch.float32)
        for term in terms[1:]:
            total.add_(_as_half(term, dtype))
        _as_half(out, dtype).copy_(total)
        return
    with np.errstate(**QUIET):
        np.add(terms[0], terms[1], out=out)
        for term in terms[2:]:
            np.add(out, term, out=out)
