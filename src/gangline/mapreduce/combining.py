# SPDX-License-Identifier: Apache-2.0
"""How the results of chunks become one: below or beside each other, or summed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from gangline.local.table import library_of
from gangline.mapreduce.labels import are_labelled, difference, differences, in_order_of
from gangline.mapreduce.result import Part
from gangline.mapreduce.work import rows_text
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

JOINED = ("rows", "columns", "list")
"""These keep every chunk's result until the end."""
FOLDED = ("sum", "min", "max")
"""These put two results into one at once."""

_ORDERED = frozenset({bool, int, float})
_NUMBERS = _ORDERED | {complex}


class Fold:
    """Puts two results into one, by name or by a function of the user's."""

    def __init__(self, how: str | Callable[[Any, Any], Any]) -> None:
        self._how = how

    def __call__(self, one: Part | None, other: Part) -> Part:
        """The result has the rows of `other`, by which messages name it."""
        if isinstance(self._how, str) and type(other.value) not in _ORDERED:
            _check_number(other, how=self._how)
        if one is None:
            return other
        if not isinstance(self._how, str):
            value = _called(self._how, one, other)
        else:
            if type(one.value) not in _NUMBERS or type(other.value) not in _NUMBERS:
                other = _checked_alike(one, other, how=self._how)
            value = _folded(self._how, one.value, other.value)
        return Part(other.start, other.stop, value)


def fold_all(how: str | Callable[[Any, Any], Any], parts: Sequence[Part]) -> Any:
    """All results as one, folded in this order; None of none."""
    fold, total = Fold(how), None
    for part in parts:
        total = fold(total, part)
    return None if total is None else total.value


def join(how: str, parts: Sequence[Part]) -> Any:
    """Results in the order of their rows as one: below or beside each other, or as a list."""
    if how == "list":
        return [part.value for part in parts]
    if not parts:
        return None
    first = parts[0].value
    if how == "rows" and isinstance(first, list | tuple):
        _check_kinds(parts, how)
        chained = itertools.chain.from_iterable(part.value for part in parts)
        return type(first)(chained) if type(first) in (list, tuple) else list(chained)
    axis = 0 if how == "rows" else 1
    kind = library_of(first)
    if kind is None or len(first.shape) <= axis:
        needed = "a row for each row, or a list" if how == "rows" else "two dimensions"
        raise UsageError(
            f"for {_rows(parts[0])} the function returned {_described(first)}: with combine={how!r} it "
            f"must return an array with {needed}; to combine otherwise, use combine='sum', 'min', "
            f"'max' or 'list'"
        )
    _check_kinds(parts, how)
    _check_shapes(parts, how, axis)
    return _concatenated(kind, [part.value for part in parts], axis)


def _concatenated(kind: str, values: list[Any], axis: int) -> Any:
    if len(values) == 1:
        return values[0]
    if kind == "torch":
        import torch

        return torch.cat(values, dim=axis)
    if kind == "scipy":
        import scipy.sparse

        stack = scipy.sparse.vstack if axis == 0 else scipy.sparse.hstack
        return stack(values, format="csr")
    if kind == "pandas":
        import pandas as pd

        return pd.concat(values, axis=axis)
    if kind == "polars":
        import polars as pl

        return pl.concat(values, how="vertical" if axis == 0 else "horizontal")
    return np.concatenate(values, axis=axis)


def _folded(how: str, one: Any, other: Any) -> Any:
    if how == "sum":
        return one + other
    kind = library_of(one) or library_of(other)
    is_least = how == "min"
    if kind == "torch":
        import torch

        return torch.minimum(one, other) if is_least else torch.maximum(one, other)
    if kind == "scipy":
        return one.minimum(other) if is_least else one.maximum(other)
    if kind is not None:
        return np.minimum(one, other) if is_least else np.maximum(one, other)
    return min(one, other) if is_least else max(one, other)


def _called(function: Callable[[Any, Any], Any], one: Part, other: Part) -> Any:
    try:
        return function(one.value, other.value)
    except Exception as error:
        rows = _rows(other)
        raise UsageError(
            f"combine failed on the result of {rows}: {type(error).__name__}: {error}; it is called "
            f"with two results, and returns one such"
        ) from error


def _check_number(part: Part, *, how: str) -> None:
    """Also the only result there is: with more rows there will be others."""
    value = part.value
    if not hasattr(value, "__add__") or isinstance(value, str | bytes | list | tuple | dict):
        raise UsageError(
            f"for {_rows(part)} the function returned {_described(value)}: with combine={how!r} "
            f"results are numbers, or arrays of one shape; for others, give combine a function of two "
            f"results"
        )
    if how != "sum" and isinstance(value, complex):
        raise UsageError(
            f"for {_rows(part)} the function returned a complex number: these have no order, and no "
            f"{how}; return abs(result), or use combine='sum'"
        )


def _checked_alike(one: Part, other: Part, *, how: str) -> Part:
    """The other one, with its labels in the same order where it has labels.

    Shapes that numpy would stretch to fit each other are a mistake here.
    """
    if are_labelled(one.value, other.value):
        why = differences(one.value, other.value)
        if why is not None:
            raise _unlike_labels(other, why, how)
        return other._replace(value=in_order_of(one.value, other.value))
    shapes = [tuple(getattr(part.value, "shape", ())) for part in (one, other)]
    if shapes[0] == shapes[1]:
        return other
    raise UsageError(
        f"for {_rows(other)} the function returned {_described(other.value)}, and "
        f"before {_described(one.value)}: with combine={how!r} results are numbers, or arrays of one "
        f"shape"
    )


def _check_kinds(parts: Sequence[Part], how: str) -> None:
    first = parts[0]
    for part in parts:
        is_alike = library_of(part.value) == library_of(first.value)
        if is_alike and (library_of(first.value) or isinstance(part.value, type(first.value))):
            continue
        raise _unlike(first, part, how)


def _check_shapes(parts: Sequence[Part], how: str, axis: int) -> None:
    first = tuple(parts[0].value.shape)
    for part in parts:
        shape = tuple(part.value.shape)
        if len(shape) != len(first) or any(
            shape[place] != first[place] for place in range(len(first)) if place != axis
        ):
            raise _unlike(parts[0], part, how)
        if are_labelled(parts[0].value, part.value) and len(shape) == 2:
            why = difference(parts[0].value, part.value, 1 - axis)
            if why is not None:
                raise _unlike_labels(part, why, how)


def _unlike_labels(part: Part, why: str, how: str) -> UsageError:
    """Pandas would put them together by label, with NaN for what the other one has not."""
    what = f"for {_rows(part)} the function returned {_described(part.value)}, but {why}"
    if how in FOLDED:
        return UsageError(
            f"{what}, unlike a result before: with combine={how!r} results have the same labels. To go "
            f"by label, use combine=lambda a, b: pd.concat([a, b]).groupby(level=0).{how}(); to go by "
            f"position, return result.to_numpy()"
        )
    fix = "result.set_axis(names, axis=1)" if how == "rows" else "result.reset_index(drop=True)"
    return UsageError(
        f"{what}, unlike the result before: with combine={how!r} results have the same labels along "
        f"the other axis; return {fix}, so that all have, or use combine='list'"
    )


def _unlike(first: Part, part: Part, how: str) -> UsageError:
    return UsageError(
        f"for {_rows(part)} the function returned {_described(part.value)}, and "
        f"for {_rows(first)} {_described(first.value)}: with combine={how!r} "
        f"results must be alike but for their {how}"
    )


def _rows(part: Part) -> str:
    return rows_text(part.start, part.stop)


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return f"a {kind}" if shape is None else f"a {kind} of shape {tuple(shape)}"
