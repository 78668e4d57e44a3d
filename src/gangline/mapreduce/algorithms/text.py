# SPDX-License-Identifier: Apache-2.0
"""Numbers from text: a row in a line, between commas or blanks, perhaps below a line of names."""

from __future__ import annotations

import gzip
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def read_numbers(path: Path) -> Any:
    """The rows of a text file, as floats.

    Comments (from # on) and a first line of names, of which none is a number, are left out. Raises
    UsageError with the line that is wrong.
    """
    form = _look(path)
    found = _load(path, form, dtype=np.float64)
    if found is None:
        raise UsageError(f"{path}, {_culprit(path, form)}")
    return found


def read_edges(path: Path) -> Any:
    """The two node numbers in each line of a list of edges, of which no bit is lost; as above."""
    form = _look(path)
    if form.width not in (2, 3):
        raise UsageError(
            f"{path} has {form.width} columns; a list of edges has two node numbers in a line, and "
            f"perhaps a weight (a matrix is given as .npy, .npz or .mtx)"
        )
    for kind in (np.int64, np.uint64):
        found = _load(path, form, dtype=kind, usecols=(0, 1))
        if found is not None:
            return found
    raise UsageError(f"{path}, {_culprit(path, form, whole=2)}")


class _Form(NamedTuple):
    separator: str | None
    has_names: bool
    width: int
    """How many values the first row has."""


def _load(path: Path, form: _Form, **options: Any) -> Any:
    """None where a line is wrong."""
    lines = (text for _, text in _rows(path, skipped=form.has_names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of no rows, which is told here
        try:
            found = np.loadtxt(lines, delimiter=form.separator, ndmin=2, **options)
        except (ValueError, OverflowError):
            return None
    if not found.size:
        raise UsageError(f"{path} has no rows of numbers")
    return found


def _look(path: Path) -> _Form:
    """What separates the numbers, and whether the first line is one of names."""
    number, first = next(_rows(path), (0, ""))
    if not first:
        raise UsageError(f"{path} has no rows")
    separator = "," if "," in first else None
    words = [word.strip() for word in first.split(separator)]
    if all(_is_number(word) for word in words):
        return _Form(separator, False, len(words))
    if any(_is_number(word) or not word for word in words):
        raise UsageError(
            f"{path}, line {number}: {first!r} is neither a row of numbers nor a line of names"
        )
    return _Form(separator, True, len(words))


def _rows(path: Path, *, skipped: bool = False) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers in the file."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            text = line.split("#", 1)[0].strip()
            if text and not skipped:
                yield number, text
            skipped &= not text


def _culprit(path: Path, form: _Form, *, whole: int = 0) -> str:
    """The first line that cannot be a row, and why; its first `whole` values are whole numbers."""
    for number, text in _rows(path, skipped=form.has_names):
        words = [word.strip() for word in text.split(form.separator)]
        if len(words) != form.width:
            return f"line {number}: {len(words)} values, and {form.width} in the first line"
        for place, word in enumerate(words):
            if not _is_number(word):
                return f"line {number}: {word!r} is not a number"
            if place < whole and not _is_whole(word):
                return f"line {number}: {word!r} is not a whole number of at most 64 bits"
    return "its numbers cannot be read together: some need all 64 bits, and others are negative"


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _is_whole(word: str) -> bool:
    try:
        return -(2**63) <= int(word) < 2**64
    except ValueError:
        return False
