# SPDX-License-Identifier: Apache-2.0
"""From whose queue a worker steals when its own is empty.

A rule is asked for every single chunk, and is shown only queues that have something: nobody waits on
an empty one. `near` are queues of the thief's own group (the same package or node), `far` the others,
both in the order own + 1, own + 2, … around.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from gangline.spec.errors import UsageError
from gangline.spec.hints import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DEFAULT_VICTIMS = "SEQPRI"


class VictimRule(Protocol):
    """Picks the queue to steal from. One object serves one loop."""

    def pick(self, worker: int, own: int, near: Sequence[int], far: Sequence[int]) -> int:
        """One of `near` or `far`, which are not both empty."""


class Sequential:
    """SEQ: the next queue around from one's own; SEQPRI: the same, those of the own group first."""

    def __init__(self, seed: int, *, near_first: bool) -> None:
        self._near_first = near_first

    def pick(self, worker: int, own: int, near: Sequence[int], far: Sequence[int]) -> int:
        """The first in the order."""
        if self._near_first:
            return near[0] if near else far[0]
        every = [*near, *far]
        return min((one for one in every if one > own), default=min(every))


class Random:
    """RANDOM: any queue, all alike; RANDOMPRI: any of the own group, as long as there are some."""

    def __init__(self, seed: int, *, near_first: bool) -> None:
        self._near_first = near_first
        self._rng = np.random.default_rng(seed)

    def pick(self, worker: int, own: int, near: Sequence[int], far: Sequence[int]) -> int:
        """Drawn."""
        every = near if self._near_first and near else [*near, *far]
        return every[int(self._rng.integers(len(every)))]


VICTIMS: Mapping[str, Callable[[int], VictimRule]] = MappingProxyType(
    {
        "SEQ": lambda seed: Sequential(seed, near_first=False),
        "SEQPRI": lambda seed: Sequential(seed, near_first=True),
        "RANDOM": lambda seed: Random(seed, near_first=False),
        "RANDOMPRI": lambda seed: Random(seed, near_first=True),
    }
)
"""The rules that have a name."""


class VictimSpec(msgspec.Struct, frozen=True):
    """Which rule: from it the rule of each loop is made."""

    text: str
    maker: Any

    def make(self, seed: int) -> VictimRule:
        """The rule of one loop, which draws with `seed`."""
        rule: VictimRule = self.maker(seed)
        return rule

    def __str__(self) -> str:
        return self.text


def parse_victims(text: str, *, load: Callable[[str], Any] | None = None) -> VictimSpec:
    """The rule that is meant; `load` imports a user's own. Raises UsageError with those that exist."""
    if ":" in text:
        if load is None:
            raise UsageError(f"victim rule {text!r}: a class of your own cannot be used here")
        maker = load(text)
        _check_rule(maker, name=text)
        return VictimSpec(text, maker)
    name = text.strip().upper()
    if name not in VICTIMS:
        hint = did_you_mean(name, VICTIMS)
        raise UsageError(
            f"no victim rule {text!r}; there are {', '.join(VICTIMS)}, and any class of your own as "
            f"package.module:Name{hint}"
        )
    return VictimSpec(name, VICTIMS[name])


def _check_rule(maker: Any, *, name: str) -> None:
    tried: tuple[tuple[list[int], list[int]], ...] = (([1], [2, 3]), ([], [3]), ([2], []))
    for near, far in tried:
        try:
            picked = maker(0).pick(0, 0, near, far)
        except Exception as error:
            raise UsageError(
                f"victim rule {name}: {type(error).__name__} when it was tried: {error}; it is made "
                "with a seed, and needs pick(worker, own, near, far) -> int"
            ) from error
        check_picked(picked, near, far, name=name)


def check_picked(picked: Any, near: Sequence[int], far: Sequence[int], *, name: str) -> int:
    """The queue that a rule picked, if it is one of those that it was shown."""
    if isinstance(picked, int) and (picked in near or picked in far):
        return picked
    raise UsageError(
        f"victim rule {name} picked {picked!r}, and must pick one of the queues {[*near, *far]}"
    )
