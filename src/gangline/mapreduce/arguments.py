# SPDX-License-Identifier: Apache-2.0
"""What `gangline.map` and its like can be asked for, checked before anything is started."""

from __future__ import annotations

import math
import os
from typing import Any, TypeGuard

import msgspec

from gangline.mapreduce.combining import FOLDED, JOINED
from gangline.mapreduce.devices import Devices, kinds_of, named_devices
from gangline.profiling.processors import usable_processors
from gangline.scheduling import Choice, Layout
from gangline.scheduling.selection import METHODS
from gangline.spec.errors import UsageError
from gangline.spec.usercode import load_named

PLACES = ("threads", "processes", "job")
SCHEME, LAYOUT, VICTIM = "FAC2", "CENTRALIZED", "SEQPRI"
ON_ERROR = ("raise", "collect")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a loop."""

    choice: Choice | None
    """How the loop is handed out; None: that is found out by `method`."""
    method: str
    between: Choice | None
    """How rows are handed out between the nodes of a job; None: here alone."""
    workers: int
    where: str
    groups: tuple[int, ...]
    """The package of each worker's processor, or its kind of device."""
    devices: tuple[str, ...]
    """What each worker computes on, which its function is told; empty where it is told nothing."""
    processors: tuple[int, ...] | None
    """What each worker is pinned to; None: nobody is."""
    ordered: bool
    collects: bool
    """Whether failures are collected."""
    patience_s: float
    """What a process may take for one chunk."""
    seed: int


def settings_of(
    *,
    rows: int,
    scheme: str | None,
    layout: str,
    victim: str,
    grain: int,
    pre_partition: bool,
    workers: int | None,
    devices: Devices,
    where: str,
    pin: bool,
    ordered: bool,
    on_error: str,
    patience_s: float | None,
    seed: int,
) -> Settings:
    """The options as the user gave them. Raises UsageError where one means nothing."""
    _check_choice("where", where, PLACES)
    _check_choice("on_error", on_error, ON_ERROR)
    _check_whole("grain", grain, least=1)
    _check_whole("seed", seed, least=0)
    if workers is not None:
        _check_whole("workers", workers, least=1)
    found = usable_processors()
    named = named_devices(devices, workers=workers, layout=layout, processors=found.count)
    count = max(1, min(len(named) or workers or _usual(found.count, where), rows))
    places = [place % len(found.numbers) for place in range(count)]
    if pin and not hasattr(os, "sched_setaffinity"):
        raise UsageError("pin=True: this system cannot pin workers to processors; leave it out")
    between, scheme = _levels(scheme, where)
    text, method = _named(scheme, grain=grain, layout=layout, victim=victim)
    choice = None
    if not method:
        choice = Choice.parse(
            text,
            grain=grain,
            layout=Layout.PERGROUP if named else layout,
            victims=victim,
            pre_partition=pre_partition,
            load=load_named,
        )
    return Settings(
        choice=choice,
        method=method,
        between=None if where != "job" else Choice.parse(between, grain=grain * count),
        workers=count,
        where=where,
        groups=kinds_of(named[:count]) or tuple(found.packages[place] for place in places),
        devices=named[:count] or ("",) * count,
        processors=tuple(found.numbers[place] for place in places) if pin else None,
        ordered=ordered,
        collects=on_error == "collect",
        patience_s=_patience(patience_s, where),
        seed=seed,
    )


def check_function(name: str, function: Any) -> None:
    """Refuses what cannot be called."""
    if not callable(function):
        raise UsageError(f"{name} is a {type(function).__name__}; give a function")


def check_combine(combine: Any, *, known: tuple[str, ...] = (*JOINED, *FOLDED)) -> None:
    """Refuses what is no way to combine results."""
    if callable(combine) and known == FOLDED:
        return
    own = ", or give a function of two results" if known == FOLDED else ""
    if callable(combine):
        raise UsageError("combine is a function: gangline.reduce takes one, gangline.map does not")
    if not isinstance(combine, str) or combine not in known:
        raise UsageError(f"combine={combine!r} is not known; choose one of {', '.join(known)}{own}")


def _levels(scheme: Any, where: str) -> tuple[str, Any]:
    """The scheme between the nodes of a job, and that within each: `GSS/SS`, or one for both."""
    if where != "job" or not isinstance(scheme, str):
        return SCHEME, scheme
    between, slash, within = scheme.partition("/")
    if between in METHODS:
        raise UsageError(
            f"scheme={scheme!r}: between the nodes of a job a scheme must be named, such as "
            f"'FAC2/{between}'"
        )
    return between, within if slash else between


def _usual(processors: int, where: str) -> int:
    """Workers of a job may share a machine: the launcher tells each how many threads are its part."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(processors, int(told)) if where == "job" and told.isdecimal() else processors


def _named(scheme: Any, **others: Any) -> tuple[str, str]:
    """The scheme, and the method that picks it by itself; one of them is empty."""
    defaults = {"grain": 1, "layout": LAYOUT, "victim": VICTIM}
    given = {name: value for name, value in others.items() if value != defaults[name]}
    if scheme is None:
        return (SCHEME, "") if given else ("", METHODS[0])
    if not isinstance(scheme, str):
        raise UsageError(f"scheme={scheme!r}: give a name such as 'GSS', or 'expert'")
    if scheme not in METHODS:
        if scheme.lower() in METHODS:
            raise UsageError(f"scheme={scheme!r}: write {scheme.lower()!r}, in lower case")
        return scheme, ""
    for name, value in given.items():
        raise UsageError(
            f"scheme={scheme!r} picks scheme, layout, victim and grain by itself: leave out "
            f"{name}={value!r}, or name a scheme"
        )
    return "", scheme


def _check_choice(name: str, choice: Any, known: tuple[str, ...]) -> None:
    if choice not in known:
        raise UsageError(f"{name}={choice!r} is not known; choose one of {', '.join(known)}")


def _check_whole(name: str, value: Any, *, least: int) -> None:
    if not _is_whole(value) or value < least:
        raise UsageError(f"{name}={value!r}: give a whole number of at least {least}")


def _patience(asked: float | None, where: str) -> float:
    if asked is None:
        return math.inf
    if where != "processes":
        raise UsageError(
            f"patience_s={asked!r} is for where='processes': a thread that hangs cannot be ended; "
            f"leave it out, or use processes"
        )
    if not isinstance(asked, int | float) or math.isnan(asked) or asked <= 0:
        raise UsageError(f"patience_s={asked!r}: give the seconds that a chunk may take, above 0")
    return float(asked)


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
