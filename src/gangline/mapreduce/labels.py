# SPDX-License-Identifier: Apache-2.0
"""Labels of pandas results. Pandas goes by them, not by position: what has no partner becomes NaN."""

from __future__ import annotations

from typing import Any

from gangline.local.table import library_of

_AXES = ("index", "columns")


def are_labelled(one: Any, other: Any) -> bool:
    """Whether both are series, or both are frames, of pandas."""
    if not hasattr(one, "reindex_like"):  # it is quick, and most results are no frames
        return False
    is_pandas = library_of(one) == library_of(other) == "pandas"
    return is_pandas and len(one.shape) == len(other.shape)


def difference(one: Any, other: Any, axis: int) -> str | None:
    """What labels along an axis the second one has otherwise; None: each has its partner.

    The order may be another one, where every label occurs once.
    """
    name = _AXES[axis]
    own, its = getattr(one, name), getattr(other, name)
    if own.equals(its):
        return None
    if not (own.is_unique and its.is_unique):
        return f"labels occur more than once in its {name}"
    if len(added := its.difference(own)):
        return f"{added[0]!r} is in its {name}"
    if len(absent := own.difference(its)):
        return f"{absent[0]!r} is not in its {name}"
    return None


def differences(one: Any, other: Any) -> str | None:
    """As `difference`, along any axis."""
    found = (difference(one, other, axis) for axis in range(len(one.shape)))
    return next((text for text in found if text is not None), None)


def in_order_of(one: Any, other: Any) -> Any:
    """The second one, whose labels are those of the first, in the order of the first."""
    own = [getattr(one, name) for name in _AXES[: len(one.shape)]]
    its = [getattr(other, name) for name in _AXES[: len(one.shape)]]
    if all(mine.equals(yours) for mine, yours in zip(own, its, strict=True)):
        return other
    return other.reindex_like(one)
