# SPDX-License-Identifier: Apache-2.0
"""`gangline.map`, `imap` and `reduce`: a function on chunks of rows, by several workers."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from gangline.mapreduce.arguments import check_combine, check_function, settings_of
from gangline.mapreduce.combining import FOLDED
from gangline.mapreduce.devices import check_takes_device
from gangline.mapreduce.inputs import Inputs
from gangline.mapreduce.loop import run_loop, stream_loop
from gangline.mapreduce.sinks import sink_for
from gangline.mapreduce.work import Work
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gangline.mapreduce.arguments import Settings
    from gangline.mapreduce.devices import Devices
    from gangline.mapreduce.result import Mapped, Part
    from gangline.mapreduce.sinks import How


def map(
    function: Callable[..., Any],
    rows: Any,
    *others: Any,
    combine: str = "rows",
    broadcast: Iterable[int] = (),
    scheme: str | None = None,
    layout: str = "CENTRALIZED",
    victim: str = "SEQPRI",
    grain: int = 1,
    pre_partition: bool = True,
    workers: int | None = None,
    devices: Devices = None,
    where: str = "threads",
    pin: bool = False,
    ordered: bool = False,
    on_error: str = "raise",
    progress: bool = False,
    details: bool = False,
    patience_s: float | None = None,
    seed: int = 0,
) -> Any:
    """Calls `function(rows of a chunk, …)` for all chunks of `rows`, and combines the results.

    See docs/mapreduce.md. With `details=True`, or where failures are collected, it returns a `Mapped`
    with the value in it.
    """
    check_combine(combine)
    work, settings = _prepared(function, rows, others, locals())
    return _run(work, settings, combine, progress=progress, details=details)


def reduce(
    function: Callable[..., Any],
    rows: Any,
    *others: Any,
    combine: str | Callable[[Any, Any], Any] = "sum",
    broadcast: Iterable[int] = (),
    scheme: str | None = None,
    layout: str = "CENTRALIZED",
    victim: str = "SEQPRI",
    grain: int = 1,
    pre_partition: bool = True,
    workers: int | None = None,
    devices: Devices = None,
    where: str = "threads",
    pin: bool = False,
    ordered: bool = False,
    on_error: str = "raise",
    progress: bool = False,
    details: bool = False,
    patience_s: float | None = None,
    seed: int = 0,
) -> Any:
    """As `map`, for results that become one: "sum", "min", "max", or a function of two results.

    Each worker puts its results together as it goes. With `ordered=True` they are put together in the
    order of the rows, so that the same chunks give the same bits.
    """
    check_combine(combine, known=FOLDED)
    work, settings = _prepared(function, rows, others, locals())
    return _run(work, settings, combine, progress=progress, details=details)


def imap(
    function: Callable[..., Any],
    rows: Any,
    *others: Any,
    broadcast: Iterable[int] = (),
    scheme: str | None = None,
    layout: str = "CENTRALIZED",
    victim: str = "SEQPRI",
    grain: int = 1,
    pre_partition: bool = True,
    workers: int | None = None,
    devices: Devices = None,
    where: str = "threads",
    pin: bool = False,
    ordered: bool = False,
    on_error: str = "raise",
    progress: bool = False,
    patience_s: float | None = None,
    seed: int = 0,
) -> Iterator[Part]:
    """As `map`, but gives each chunk's result as it comes, as `Part(start, stop, value)`.

    With `ordered=True` in the order of the rows. Workers wait for a reader that is slow. With
    `on_error="collect"` a chunk that failed is left out.
    """
    work, settings = _prepared(function, rows, others, locals())
    if settings.between is not None:
        raise UsageError("imap is for threads and processes; use map with where='job'")
    return stream_loop(settings, work, progress=progress)


_OPTIONS = tuple(name for name in inspect.signature(settings_of).parameters if name != "rows")


def _prepared(
    function: Callable[..., Any], rows: Any, others: tuple[Any, ...], given: dict[str, Any]
) -> tuple[Work, Settings]:
    """What is to be done, and how; `given` are the arguments of the call by their names."""
    check_function("function", function)
    if given["devices"] is not None:
        check_takes_device(function)
    work = Work(function, Inputs(rows, others, broadcast=given["broadcast"]))
    options = {name: given[name] for name in _OPTIONS}
    return work, settings_of(rows=work.num_rows, **options)


def _run(work: Work, settings: Settings, combine: How, *, progress: bool, details: bool) -> Any:
    if settings.between is not None and progress:
        raise UsageError(
            "progress=True is for threads and processes; leave it out with where='job'"
        )
    if settings.between is not None and work.num_rows:
        mapped = _run_in_job(work, settings, combine)
    else:
        mapped = run_loop(settings, work, sink_for(combine, settings), progress=progress)
    return mapped if details or settings.collects else mapped.value


def _run_in_job(work: Work, settings: Settings, combine: How) -> Mapped:
    from gangline.mapreduce.nodes.run import NodeLoop  # it needs torch

    return NodeLoop(settings, work, combine).run()
