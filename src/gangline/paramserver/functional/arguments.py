# SPDX-License-Identifier: Apache-2.0
"""What `gangline.paramserv` can be asked for, checked before anything is started."""

from __future__ import annotations

import math
import os
import re
from typing import Any, TypeGuard

import msgspec

from gangline.spec.consistency import ASP, Consistency, parse_consistency
from gangline.spec.errors import UsageError

SCHEMES = ("disjoint_contiguous", "disjoint_round_robin", "disjoint_random", "overlap_reshuffle")
AVERAGES = ("gradients", "models")
REDUCTIONS = ("mean", "sum")
PLACES = ("threads", "processes", "job")
HOGWILD = "hogwild"
MAX_SEED = 2**64
PATIENCE_S = 60.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run."""

    mode: Consistency
    per_push: int | None
    """Batches per update, or None: all that a worker has in an epoch."""
    frequency: str
    scheme: str
    workers: int
    epochs: int
    batch_size: int
    average: str
    reduction: str
    where: str
    seed: int
    patience_s: float
    """What a process may take for one batch."""
    is_hogwild: bool = False
    """Whether workers change one shared model in place; else `mode` says how they are held together."""

    @property
    def named_mode(self) -> str:
        """The mode as the user wrote it."""
        return HOGWILD if self.is_hogwild else str(self.mode)

    @property
    def is_in_step(self) -> bool:
        """Whether an epoch begins when the one before is over."""
        return self.is_hogwild or self.mode.has_rounds


def settings_of(
    *,
    rows: int,
    mode: str,
    frequency: str,
    workers: int | None,
    patience_s: float | None,
    epochs: int,
    batch_size: int,
    seed: int,
    **choices: str,
) -> Settings:
    """The options as the user gave them. Raises UsageError where one means nothing."""
    _check_choices(choices)
    _check_numbers(epochs=epochs, batch_size=batch_size, workers=workers, seed=seed)
    if not isinstance(mode, str):
        raise UsageError(f"mode={mode!r}: give a text such as 'bsp' or 'ssp(4)'")
    is_hogwild = mode.strip() == HOGWILD
    if is_hogwild:
        _check_hogwild(frequency, choices)
    consistency = _consistency(ASP if is_hogwild else mode)
    return Settings(
        mode=consistency,
        per_push=parse_frequency(frequency),
        frequency=frequency,
        workers=_busy(consistency, workers, rows),
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        patience_s=_patience(patience_s, choices["where"]),
        is_hogwild=is_hogwild,
        **choices,
    )


def _consistency(mode: str) -> Consistency:
    try:
        return parse_consistency(mode)
    except UsageError as error:
        raise UsageError(f"mode={mode!r}: {error}, or hogwild") from error


def parse_frequency(text: str) -> int | None:
    """Batches per update: 1 for `batch`, n for `batches(n)`, None for `epoch`."""
    match = re.fullmatch(r"batches\(\s*([0-9]{1,9})\s*\)", text) if isinstance(text, str) else None
    if text == "batch":
        return 1
    if text == "epoch":
        return None
    if match is None or int(match[1]) < 1:
        raise UsageError(
            f"frequency={text!r}: give 'batch', 'epoch', or 'batches(8)' with a number of at least 1"
        )
    return int(match[1])


def check_functions(**functions: Any) -> None:
    """Refuses what cannot be called, by its name."""
    for name, function in functions.items():
        if not callable(function):
            raise UsageError(f"{name} is a {type(function).__name__}; give a function")


def _check_hogwild(frequency: str, choices: dict[str, str]) -> None:
    if choices["where"] != "threads":
        raise UsageError(
            f"mode='hogwild' with where={choices['where']!r}: all workers change one model in the "
            "memory of one process; use where='threads', or mode='asp', whose updates a server applies"
        )
    wanted = {"frequency": "batch", "average": "gradients", "reduction": "mean"}
    given = {"frequency": frequency, **choices}
    for name in (name for name, value in wanted.items() if given[name] != value):
        raise UsageError(
            f"{name}={given[name]!r} is for a server that brings updates together, and in "
            "mode='hogwild' every batch is written into the model at once; leave it out"
        )


def _check_numbers(*, seed: int, **counts: int | None) -> None:
    for name, value in counts.items():
        if name == "workers" and value is None:
            continue
        if not _is_whole(value) or value < 1:
            raise UsageError(f"{name}={value!r}: give a whole number of at least 1")
    if not _is_whole(seed) or not 0 <= seed < MAX_SEED:
        raise UsageError(f"seed={seed!r}: give a whole number from 0 to 2**64 - 1")


def _busy(consistency: Consistency, workers: int | None, rows: int) -> int:
    """How many workers have rows."""
    asked = _cores() if workers is None else workers
    consistency.check(asked)
    if consistency.backups >= rows:
        raise UsageError(
            f"{consistency} leaves nobody to wait for: with {rows} row{'s' if rows != 1 else ''} no "
            f"more than {rows} of {asked} workers are busy; give fewer backups, or more rows"
        )
    return min(asked, rows)


def _patience(asked: float | None, where: str) -> float:
    if asked is None:
        return PATIENCE_S
    if where == "threads":
        raise UsageError(
            f"patience_s={asked!r} is for where='processes' and where='job': a thread that hangs "
            f"cannot be ended; leave it out, or use processes"
        )
    if not isinstance(asked, int | float) or math.isnan(asked) or asked <= 0:
        raise UsageError(f"patience_s={asked!r}: give seconds above 0; math.inf waits for ever")
    return float(asked)


def _check_choices(choices: dict[str, str]) -> None:
    known = {"scheme": SCHEMES, "average": AVERAGES, "reduction": REDUCTIONS, "where": PLACES}
    for name, choice in choices.items():
        if choice not in known[name]:
            raise UsageError(
                f"{name}={choice!r} is not known; choose one of {', '.join(known[name])}"
            )
    if choices["average"] == "models" and choices["reduction"] == "sum":
        raise UsageError(
            "reduction='sum' is for gradients: a sum of models is no model; leave it out with "
            "average='models'"
        )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
