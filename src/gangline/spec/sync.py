# SPDX-License-Identifier: Apache-2.0
"""How tightly groups of workers are held together: what `--sync` and `prepare(sync=…)` take.

    full                       every step sums the gradients of all workers: exact (the default)
    none                       groups train apart, and are averaged at the end of each epoch
    percentage(0.25)           groups are averaged after every fourth global batch, in the background
    local(16)                  groups are averaged after 16 steps each, beside the next 16
    local(16, strict)          they stop after 16 steps each until they are averaged
    local(16, nesterov)        the same, with an outer optimizer (Nesterov momentum, as in DiLoCo)
    flexible                   how often is found from what exchanging costs, while the job runs
    auto                       full or flexible, by the measured cost of a global exchange
    bsp, asp, ssp(4), backup(1)
                               groups push gradients to parameter servers, which make the update

What follows the number is said by name: `asp(servers=2, replicas=0)`; see `spec/serving.py`.

Levels of a structure are separated by `/`, from the leaves up: `full/flexible` sums gradients in the
lowest two levels, and averages the groups above them. `percentage(0.5)/percentage(0.02)` sums them in
the lowest groups only, averages these often within the groups above them, and rarely over all.
"""

from __future__ import annotations

import itertools
import math
import re

import msgspec

from gangline.spec.consistency import BSP, CONSISTENCIES
from gangline.spec.errors import UsageError
from gangline.spec.serving import Service, parse_service

FULL = "full"
NONE = "none"
PERCENTAGE = "percentage"
LOCAL = "local"
FLEXIBLE = "flexible"
AUTO = "auto"
SERVED = "served"
KINDS = (FULL, NONE, PERCENTAGE, LOCAL, FLEXIBLE, AUTO, SERVED)
AVERAGE = "average"
NESTEROV = "nesterov"
OUTER = (AVERAGE, NESTEROV)
"""What is done with the mean of the groups: taken, or followed with momentum."""
STRICT = "strict"

_STACKED = (NONE, PERCENTAGE, FLEXIBLE)
"""What the levels can be where several of them are relaxed: those whose teams never stop."""

_FORM = re.compile(r"(?P<kind>[a-z]+)(?:\((?P<arguments>[^()]*)\))?")
_EXAMPLE = (
    "write for example full, none, percentage(0.25), local(16), local(16, nesterov), flexible, asp, "
    "ssp(4), bsp(servers=2)"
)


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """How the groups above the synchronous levels are held together."""

    kind: str = FULL
    rate: float = 1.0
    """`percentage`: exchanges per global batch, above 0 and below 1."""
    steps: int = 1
    """`local`: steps of a group between two exchanges."""
    outer: str = AVERAGE
    """`local`: the outer optimizer."""
    is_strict: bool = False
    """`local`: groups stand still while they are averaged."""
    service: Service | None = None
    """`served`: by which parameter servers, and how."""
    levels: int = 1
    """How many levels, from the leaves up, sum their gradients in every step."""
    within: tuple[Sync, ...] = ()
    """The relaxed levels below the highest one, from the lowest up."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"sync {self.kind!r} is not known: {_EXAMPLE}")
        if not (math.isfinite(self.rate) and 0 < self.rate <= 1):
            raise UsageError(
                f"percentage({self.rate:g}): the rate is a part of the steps, above 0 and at most 1"
            )
        if self.steps < 1:
            raise UsageError(f"local({self.steps}): a number of steps is at least 1")
        if self.outer not in OUTER:
            raise UsageError(
                f"the outer optimizer {self.outer!r} is not known; choose one of: {', '.join(OUTER)}"
            )
        if (self.service is not None) != (self.kind == SERVED):
            raise UsageError(f"only what is served has servers: {_EXAMPLE}")
        if self.levels < 1:
            raise UsageError(f"at least the lowest level is synchronous, not {self.levels} levels")
        wrong = [one.kind for one in self.rates if one.kind not in _STACKED]
        if self.within and wrong:
            raise UsageError(
                f"where several levels are relaxed, each is {', '.join(_STACKED)}, not {wrong[0]}; "
                f"{_EXAMPLE}"
            )

    @property
    def rates(self) -> tuple[Sync, ...]:
        """How each relaxed level is held together, from the lowest up."""
        return (*self.within, self)

    @property
    def is_relaxed(self) -> bool:
        """Whether there are groups that train at their own pace."""
        return self.kind not in (FULL, AUTO)

    @property
    def has_common_steps(self) -> bool:
        """Whether all groups wait for each other's steps, and count by their samples."""
        return any(
            one.kind == LOCAL or (one.service is not None and one.service.consistency.kind == BSP)
            for one in self.rates
        )

    @property
    def overlaps(self) -> bool:
        """Whether groups go on while they are averaged after so many steps."""
        return self.kind == LOCAL and not self.is_strict

    def __str__(self) -> str:
        below = "full/" * (self.levels - 1) + "".join(f"{one}/" for one in self.within)
        match self.kind:
            case "percentage":
                return f"{below}percentage({self.rate!r})"
            case "local":
                outer = "" if self.outer == AVERAGE else f", {self.outer}"
                strict = f", {STRICT}" if self.is_strict else ""
                return f"{below}local({self.steps}{outer}{strict})"
            case "served":
                return f"{below}{self.service}"
            case _:
                return f"{below}{self.kind}"


IN_STEP = Sync()
"""All workers sum their gradients in every step."""


def parse_sync(text: str) -> Sync:
    """What a user wrote. Raises UsageError where it means nothing."""
    *below, top = [part.strip() for part in text.split("/")]
    in_step = list(itertools.takewhile(lambda level: level == FULL, below))
    within = [_level_of(text, level, levels=1) for level in below[len(in_step) :]]
    if any(one.kind == FULL for one in within):
        raise UsageError(
            f"sync {text!r}: the levels that are full come first, below those that are relaxed; "
            f"{_EXAMPLE}"
        )
    found = _level_of(text, top, levels=1 + len(in_step))
    if within and found.kind == FULL:
        raise UsageError(f"sync {text!r}: what is full is below what is relaxed; {_EXAMPLE}")
    return msgspec.structs.replace(found, within=tuple(within)) if within else found


def _level_of(text: str, level: str, *, levels: int) -> Sync:
    match = _FORM.fullmatch(level)
    if match is None:
        raise UsageError(f"sync {text!r} cannot be read: {_EXAMPLE}")
    given = match["arguments"]
    if match["kind"] in CONSISTENCIES:
        return Sync(kind=SERVED, service=parse_service(level), levels=levels)
    arguments = [] if given is None else [part.strip() for part in given.split(",")]
    return _sync_of(text, match["kind"], arguments, levels=levels)


def _sync_of(text: str, kind: str, arguments: list[str], *, levels: int) -> Sync:
    try:
        match kind, arguments:
            case ("percentage", [rate]):
                value = float(rate)
                is_all = value == 1
                return Sync(kind=FULL if is_all else PERCENTAGE, rate=value, levels=levels)
            case ("local", [steps, *outer, "strict"]) if len(outer) <= 1:
                found = Sync(kind=LOCAL, steps=int(steps), is_strict=True, levels=levels)
                return msgspec.structs.replace(found, outer=outer[0]) if outer else found
            case ("local", [steps]):
                return Sync(kind=LOCAL, steps=int(steps), levels=levels)
            case ("local", [steps, outer]):
                return Sync(kind=LOCAL, steps=int(steps), outer=outer, levels=levels)
            case (_, []) if kind not in (PERCENTAGE, LOCAL, SERVED):
                return Sync(kind=kind, levels=levels)
    except ValueError as error:
        raise UsageError(f"sync {text!r}: {error}; {_EXAMPLE}") from error
    raise UsageError(f"sync {text!r} cannot be read: {_EXAMPLE}")
