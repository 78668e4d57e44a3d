# SPDX-License-Identifier: Apache-2.0
"""Parameter servers: what a job asks for, who serves which part, and the order of the updates.

asp                            two copies of one shard that holds all parameters
ssp(4, servers=2)              two shards, on two workers, each with a copy on another one
backup(1, replicas=0)          no copies: a lost shard is rebuilt from what a worker pulled last
asp(update=worker)             workers update by themselves, and push what has changed
asp(update=worker, push=4, fetch=4)
                               they do so after every fourth step (Downpour)
asp(scale=plain)               every push is a step of the whole learning rate (as published)
asp(ahead=1)                   the next step is computed while the last update travels
bsp(pull=forward)              parameters come while the next forward pass uses them
asp(rate=staleness)            the learning rate is divided by 1 + staleness
asp(rows=ondemand)             rows of tables with sparse gradients come when a batch uses them
asp(compensation=0.04)         delayed gradients are corrected for what has changed (DC-ASGD)
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from gangline.spec.consistency import Consistency, parse_consistency
from gangline.spec.errors import UsageError
from gangline.spec.exchange.address import WireAddress

NOBODY = -1
SERVER, WORKER = "server", "worker"
UPDATES = (SERVER, WORKER)
SHARE, PLAIN = "share", "plain"
SCALES = (SHARE, PLAIN)
STALENESS = "staleness"
RATES = (PLAIN, STALENESS)
AT_STEP, IN_FORWARD = "step", "forward"
PULLS = (AT_STEP, IN_FORWARD)
CHANGED, ONDEMAND = "changed", "ondemand"
ROWS = (CHANGED, ONDEMAND)
MAX_SERVERS = 64
_FORM = re.compile(r"(?P<kind>[a-z]+)(?:\((?P<arguments>[^()]*)\))?")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks of its parameter servers."""

    consistency: Consistency
    servers: int = 1
    """Over so many workers the parameters are divided."""
    replicas: int = 1
    """How many copies of each shard there are beside it: 0 or 1."""
    update: str = SERVER
    """Who makes the update: the server, from gradients, or the worker, which pushes what it changed."""
    push: int = 1
    """`update=worker`: how many steps a worker makes between two pushes."""
    fetch: int = 1
    """`update=worker`: how many steps a worker makes between two pulls."""
    scale: str = SHARE
    """How much a push counts: its share of the global batch, or as much as a whole step."""
    rate: str = PLAIN
    """Whether the learning rate goes down with staleness."""
    ahead: int = 0
    """How many steps a worker computes while its last update travels: 0 or 1."""
    pull: str = AT_STEP
    """When parameters are pulled: before a step ends, or while the next forward pass uses them."""
    compensation: float = 0.0
    """How strongly delayed gradients are corrected for what has changed since (lambda of DC-ASGD)."""
    rows: str = CHANGED
    """When rows of tables with sparse gradients come: with the pull after which they have changed, or
    when a batch uses them."""

    def __post_init__(self) -> None:
        if not 1 <= self.servers <= MAX_SERVERS:
            raise UsageError(f"servers={self.servers}: give 1 to {MAX_SERVERS}")
        if self.replicas not in (0, 1):
            raise UsageError(
                f"replicas={self.replicas}: a shard has one copy beside it (1), or none (0)"
            )
        for name, value, known in (
            ("update", self.update, UPDATES),
            ("scale", self.scale, SCALES),
            ("rate", self.rate, RATES),
            ("pull", self.pull, PULLS),
            ("rows", self.rows, ROWS),
        ):
            if value not in known:
                raise UsageError(f"{name}={value!r} is not known: give {' or '.join(known)}")
        if not (math.isfinite(self.compensation) and self.compensation >= 0):
            raise UsageError(f"compensation={self.compensation}: give 0 (none) or more")
        for name, steps in (("push", self.push), ("fetch", self.fetch)):
            if steps < 1:
                raise UsageError(f"{name}={steps}: give a number of steps, 1 or more")
            if steps > 1 and self.update == SERVER:
                raise UsageError(
                    f"{name}={steps}: between two pushes a worker updates by itself; "
                    "say update=worker as well"
                )
        if self.ahead not in (0, 1):
            raise UsageError(
                f"ahead={self.ahead}: a worker computes one step (1) while its last update travels, or "
                "waits for it (0)"
            )
        if self.ahead and (self.update == WORKER or self.consistency.has_rounds):
            raise UsageError(
                "ahead=1 is for asp and ssp with update=server: in rounds all wait for each other, and "
                "a worker that updates by itself waits for nobody"
            )
        if self.consistency.has_rounds and (
            self.scale != SHARE or self.rate != PLAIN or self.compensation
        ):
            raise UsageError(
                f"scale, rate and compensation are for asp and ssp: in {self.consistency} the updates "
                "of a round are one step, by their mean, and none is stale; leave them out"
            )
        if self.pull == IN_FORWARD and (self.update == WORKER or self.ahead):
            raise UsageError(
                "pull=forward is for update=server without ahead=1: a worker that updates by itself, "
                "or computes ahead, uses the parameters that it has"
            )
        if self.update == WORKER and (self.rate != PLAIN or self.compensation):
            raise UsageError(
                "rate and compensation change what a server does with gradients: "
                "they need update=server"
            )
        if self.rows == ONDEMAND and self.pull == IN_FORWARD:
            raise UsageError(
                "rows=ondemand and pull=forward exclude each other: pull=forward brings all rows of "
                "every table; leave out one of them"
            )
        if self.rows == ONDEMAND and (self.update == WORKER or self.ahead or self.compensation):
            raise UsageError(
                "rows=ondemand needs update=server, without ahead and compensation: these go by "
                "parameters that are whole on the worker"
            )

    def check(self, *, teams: int, workers: int) -> None:
        """Refuses numbers of groups and workers that it cannot work with."""
        self.consistency.check(teams)
        if self.servers > workers:
            raise UsageError(
                f"servers={self.servers}: the job has {workers} workers, and each holds one shard to "
                "begin with; give fewer servers, or more workers"
            )

    def __str__(self) -> str:
        kind, _, number = str(self.consistency).rstrip(")").partition("(")
        named = [
            f"{field}={getattr(self, field)}"
            for field, value in _DEFAULTS.items()
            if getattr(self, field) != value
        ]
        inner = ", ".join(([number] if number else []) + named)
        return f"{kind}({inner})" if inner else kind


_DEFAULTS: dict[str, Any] = {
    "servers": 1,
    "replicas": 1,
    "update": SERVER,
    "push": 1,
    "fetch": 1,
    "scale": SHARE,
    "rate": PLAIN,
    "ahead": 0,
    "pull": AT_STEP,
    "compensation": 0.0,
    "rows": CHANGED,
}


def parse_service(text: str) -> Service:
    """What a user wrote. Raises UsageError where it means nothing."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} cannot be read: write for example asp or ssp(4, servers=2)")
    given = [part.strip() for part in (match["arguments"] or "").split(",") if part.strip()]
    plain = [part for part in given if "=" not in part]
    named: dict[str, Any] = {}
    for part in given:
        name, sign, value = (one.strip() for one in part.partition("="))
        if sign:
            if name not in _DEFAULTS or name in named:
                known = ", ".join(_DEFAULTS)
                raise UsageError(
                    f"{text!r}: {name!r} is not known, or said twice; there are {known}"
                )
            named[name] = _value_of(text, name, value)
    inner = f"({', '.join(plain)})" if plain else ""
    return Service(consistency=parse_consistency(f"{match['kind']}{inner}"), **named)


def _value_of(text: str, name: str, value: str) -> Any:
    kind = type(_DEFAULTS[name])
    try:
        return kind(value)
    except ValueError as error:
        raise UsageError(f"{text!r}: {name} is a number, not {value!r}") from error


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, and where it is reached."""

    worker: int
    address: WireAddress


class ShardPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds one shard: a part of the model's parameters, and of the optimizer's state."""

    primary: int
    """The worker that serves it."""
    replica: int = NOBODY
    """The worker that holds a copy, and serves it when the first one is lost."""
    weight: float = 1.0
    """How much of the model it is, in proportion to the other shards."""
    is_lost: bool = False
    """Whether nobody holds it any more: it waits for what `Serving.source` pulled last."""


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the shards. Numbered: each change has a higher number, and the same shards."""

    number: int
    shards: tuple[ShardPlace, ...]
    hosts: tuple[Host, ...]
    """All workers of the job: who holds shards, and who may push and pull."""
    teams: tuple[int, ...] = ()
    """The teams that were founded to train by these servers."""
    applied: int = 0
    """The first update that was not applied when this was decided: entries before it are known to all
    shards that are served."""
    compression: str = "none"
    """How gradients are pushed in fewer bytes."""
    source: int = NOBODY
    """Where a shard was lost with all its copies: the worker whose last pull all shards go back to."""

    @property
    def is_incomplete(self) -> bool:
        """Whether a shard is held by nobody, and nobody is chosen yet whose pull it is rebuilt from."""
        return self.source == NOBODY and any(place.is_lost for place in self.shards)

    def address_of(self, worker: int) -> WireAddress:
        """Where a worker is reached."""
        return next(host.address for host in self.hosts if host.worker == worker)


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One pushed gradient, and how much it counts."""

    team: int
    clock: int
    """Which of the team's pushes it is, from 0."""
    weight: float


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One update of the parameters. All shards apply the same entries in the same order."""

    number: int
    parts: tuple[Part, ...]
    """Their weighted sum is the gradient of one step of the optimizer."""
    staleness: int = 0
    """How many updates were applied since the parameters were read that it was computed from."""
