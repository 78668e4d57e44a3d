# SPDX-License-Identifier: Apache-2.0
"""Models and gradients: lists, tuples or dicts of numpy arrays and torch tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from gangline.spec.errors import GradientError, UsageError

Leaves = list[Any]
"""The arrays of a model, in its order."""


class Shape(msgspec.Struct, frozen=True):
    """What an array must be like."""

    library: str
    shape: tuple[int, ...]
    dtype: str
    device: str

    def __str__(self) -> str:
        where = f" on {self.device}" if self.device not in ("", "cpu") else ""
        return f"{self.library} {self.dtype}{list(self.shape)}{where}"


class Form:
    """How the arrays of a model, or of its gradients, are held together."""

    def __init__(self, kind: type, names: Sequence[Any], shapes: Sequence[Shape]) -> None:
        self._kind = kind
        self._names = tuple(names)
        self.shapes = tuple(shapes)

    def __str__(self) -> str:
        entries = zip(self._names, self.shapes, strict=True)
        return ", ".join(f"{name}: {shape}" for name, shape in entries)

    @classmethod
    def of(cls, model: Any) -> Form:
        """That of the model which the user gave."""
        kind = next((kind for kind in (dict, tuple, list) if isinstance(model, kind)), None)
        if kind is None or not model:
            raise UsageError(
                f"the model is {'empty' if kind else f'a {type(model).__name__}'}; give a list, tuple "
                f"or dict of numpy arrays or torch tensors"
            )
        names = list(model) if kind is dict else list(range(len(model)))
        shapes = [_shape_of(model[name]) for name in names]
        for name, shape in zip(names, shapes, strict=True):
            if shape is None or not _is_floating(model[name]):
                raise UsageError(
                    f"entry {name!r} of the model is {_said(model[name])}; give numpy arrays or torch "
                    f"tensors of floating-point numbers"
                )
        return cls(kind, names, [shape for shape in shapes if shape is not None])

    def first(self, count: int) -> Form:
        """The form of the first entries alone."""
        return Form(self._kind, self._names[:count], self.shapes[:count])

    def leaves(self, value: Any, what: str) -> Leaves:
        """The arrays in a value of this form. Raises UsageError, or GradientError for no numbers."""
        found = [
            self._leaf(entry, shape, f"entry {name!r} of {what}")
            for entry, name, shape in zip(
                self._entries(value, what), self._names, self.shapes, strict=True
            )
        ]
        self.check_finite(found, what)
        return found

    def check_finite(self, leaves: Leaves, what: str) -> None:
        """Raises GradientError where an array has values that are no numbers."""
        for leaf, name in zip(leaves, self._names, strict=True):
            if not _is_finite(leaf):
                raise GradientError(
                    f"entry {name!r} of {what} has values that are not finite; look at the data, "
                    f"or take a smaller learning rate"
                )

    def copies(self, value: Any) -> Leaves:
        """The arrays of the user's model, which stays as it is."""
        try:
            return [_copy(leaf) for leaf in self.leaves(value, "the model")]
        except GradientError as error:
            raise UsageError(
                f"{str(error).partition(';')[0]} before anything was trained: give a model of numbers"
            ) from error

    def build(self, leaves: Leaves) -> Any:
        """A value of this form, which the caller may change."""
        return self.hold([_copy(leaf) for leaf in leaves])

    def hold(self, leaves: Leaves) -> Any:
        """A value of this form, of these arrays themselves."""
        if self._kind is dict:
            return dict(zip(self._names, leaves, strict=True))
        return self._kind(leaves)

    def named_entries(self, value: Any, what: str) -> list[tuple[Any, Any]]:
        """The entries of a value of this form, which may be no arrays, with their names."""
        return list(zip(self._names, self._entries(value, what), strict=True))

    def checked(self, name: Any, entry: Any, what: str) -> Any:
        """An entry that must be an array like the model's."""
        shape = self.shapes[self._names.index(name)]
        return self._leaf(entry, shape, f"entry {name!r} of {what}")

    def _entries(self, value: Any, what: str) -> list[Any]:
        count = len(self._names)
        if self._kind is dict:
            if not isinstance(value, Mapping) or set(value) != set(self._names):
                found = (
                    sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
                )
                hint = "; return it, also where it was changed in place" if value is None else ""
                raise UsageError(
                    f"{what} must be a dict with the keys {list(self._names)}, not {found}{hint}"
                )
            return [value[name] for name in self._names]
        if not isinstance(value, list | tuple) or len(value) != count:
            found = (
                f"{len(value)}" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
            )
            raise UsageError(
                f"{what} must be a list of {count} arrays, as the model is, not {found}"
            )
        return list(value)

    def _leaf(self, entry: Any, shape: Shape, what: str) -> Any:
        if shape.library == "numpy" and isinstance(entry, np.generic):
            entry = np.asarray(entry)  # numpy turns arrays without axes into numbers
        if _shape_of(entry) != shape:
            raise UsageError(f"{what} must be {shape}, as the model's is, not {_said(entry)}")
        return entry if shape.library == "numpy" else entry.detach()


def copied(leaves: Leaves) -> Leaves:
    """The same arrays, in memory of their own."""
    return [_copy(leaf) for leaf in leaves]


def combine(parts: Sequence[tuple[float, Leaves]]) -> Leaves:
    """The weighted sum of arrays, in the order given."""
    return [
        _like(sum(leaf * weight for leaf, weight in zip(leaves, weights, strict=True)), leaves[0])
        for leaves, weights in (
            ([part[position] for _, part in parts], [weight for weight, _ in parts])
            for position in range(len(parts[0][1]))
        )
    ]


def _like(value: Any, leaf: Any) -> Any:
    return np.asarray(value, dtype=leaf.dtype) if isinstance(leaf, np.ndarray) else value


def _copy(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf.detach().clone()


def _shape_of(leaf: Any) -> Shape | None:
    if isinstance(leaf, np.ndarray):
        return Shape("numpy", leaf.shape, str(leaf.dtype), "")
    if _is_tensor(leaf):
        return Shape(
            "torch", tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."), str(leaf.device)
        )
    return None


def _is_tensor(leaf: Any) -> bool:
    return any(
        base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(leaf).__mro__
    )


def _is_floating(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return bool(leaf.dtype.kind == "f")
    return bool(leaf.is_floating_point())


def _is_finite(leaf: Any) -> bool:
    return bool((np.isfinite(leaf) if isinstance(leaf, np.ndarray) else leaf.isfinite()).all())


def _said(entry: Any) -> str:
    shape = _shape_of(entry)
    return f"a {type(entry).__name__}" if shape is None else str(shape)
