# SPDX-License-Identifier: Apache-2.0
"""Which cases of a test `make test` runs, and which only `make test-slow`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def quick_of(cases: Iterable[Any], *, quick: Collection[Any]) -> list[Any]:
    """All cases for `parametrize`, a tuple for several arguments: those that are not quick are slow.

    The quick ones stand for all of them: one for each way in which things can go wrong.
    """
    every = list(cases)
    unknown = [one for one in quick if one not in every]
    if unknown or not quick:
        raise ValueError(f"quick cases {unknown or 'are missing'}: name some of {every}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in quick else pytest.mark.slow,
        )
        for case in every
    ]
