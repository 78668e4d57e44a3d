# SPDX-License-Identifier: Apache-2.0
"""Allocations by which workers pull parts of the global batch until none is left.

    self-scheduled                    all of it is pulled, by weighted factoring
    self-scheduled(GSS)               by another scheme of `scheduling`
    self-scheduled(FAC2, grain=4)     in parts of four samples at least
    balanced+stolen                   each worker begins with 80 % of its balanced share
    balanced+stolen(GSS, own=0.9)     with 90 %; the rest is pulled

What is pulled is cut by one scheme per global batch: the samples are its items, the members share it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from gangline.control.chunking import check_scheme
from gangline.planning.allocation.policies import check_allocation
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

SELF_SCHEDULED = "self-scheduled"
STOLEN = "balanced+stolen"
DEFAULT_SCHEME = "WF2"
"""A worker's first part is half of what its speed would give it: by equal halves (FAC2), one that is
slower than half of the others' mean would be waited for; by guided ones (GSS), every slow one."""
DEFAULT_OWN = 0.8
GRAINS = 8
"""Where no grain is given, a worker's equal share has so many: each part costs a pass of its own."""

_WRITTEN = re.compile(r"^(?P<name>self-scheduled|balanced\+stolen)(?:\((?P<inside>.*)\))?$")
_OUTSIDE = re.compile(r",(?![^()]*\))")
"""A comma that is in no parentheses."""


class Pulling(msgspec.Struct, frozen=True, kw_only=True):
    """How the parts of a global batch are pulled."""

    scheme: str = DEFAULT_SCHEME
    """What says how large the next part is."""
    grain: int = 0
    """The fewest samples of a part; 0: an eighth of the equal share of what is pulled."""
    own: float = 0.0
    """Which fraction of its share a worker begins with, before it pulls."""

    @property
    def base(self) -> str:
        """The allocation that shares follow: those that workers begin with, if they do."""
        return "balanced" if self.own else "equal"

    def heads(self, shares: Sequence[int], *, minimum: int) -> list[int]:
        """How many samples each member begins with; none where that is too little for a batch."""
        found = [int(self.own * share) for share in shares]
        return [head if head >= minimum else 0 for head in found]

    def grain_of(self, total: int, members: int, *, minimum: int) -> int:
        """The fewest samples of a part of `total`, which so many share."""
        return max(1, minimum, self.grain or -(-total // (GRAINS * members)))


def parse_pulling(allocation: str) -> Pulling | None:
    """What the allocation says of pulling; None where nothing is pulled. Raises UsageError."""
    found = _WRITTEN.match(allocation.strip())
    if found is None:
        return None
    scheme, given = DEFAULT_SCHEME, {"own": DEFAULT_OWN if found["name"] == STOLEN else 0.0}
    for part in filter(None, (one.strip() for one in _OUTSIDE.split(found["inside"] or ""))):
        key, equals, value = part.partition("=")
        if equals and "(" not in key:
            given[key.strip()] = _number(key.strip(), value, allocation)
        else:
            scheme = part
    _check(given, allocation)
    check_scheme(scheme)
    return Pulling(scheme=scheme, grain=int(given.get("grain", 0)), own=given["own"])


def check_any_allocation(name: str) -> str:
    """`name`, if it is an allocation, by shares or by pulling. Raises UsageError."""
    return name if parse_pulling(name) is not None else check_allocation(name)


def base_allocation(name: str) -> str:
    """The allocation by which shares are made."""
    pulling = parse_pulling(name)
    return name if pulling is None else pulling.base


def _number(key: str, value: str, allocation: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(
            f"allocation {allocation!r}: {key} must be a number, not {value!r}"
        ) from None


def _check(given: dict[str, float], allocation: str) -> None:
    is_stolen = allocation.strip().startswith(STOLEN)
    known = ("grain", "own") if is_stolen else ("grain",)
    unknown = [
        key for key in given if key not in known and (is_stolen or key != "own" or given[key])
    ]
    if unknown:
        raise UsageError(
            f"allocation {allocation!r}: no option {unknown[0]!r}; there are {', '.join(known)}"
        )
    grain = given.get("grain", 1)
    if grain < 1 or grain != int(grain):
        raise UsageError(
            f"allocation {allocation!r}: grain is a whole number of samples, at least 1"
        )
    if is_stolen and not 0 < given["own"] < 1:
        raise UsageError(
            f"allocation {allocation!r}: own is the part of a share that a worker begins with, "
            "between 0 and 1"
        )
