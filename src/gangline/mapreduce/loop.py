# SPDX-License-Identifier: Apache-2.0
"""One loop from its first chunk to its end, on this machine."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from gangline.mapreduce.crew import Crew
from gangline.mapreduce.dispatch import Dispatch
from gangline.mapreduce.progress import TICK_S, Bar
from gangline.mapreduce.result import Mapped, Part
from gangline.mapreduce.selecting import queues_of
from gangline.mapreduce.sinks import Stream, in_order
from gangline.mapreduce.work import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.mapreduce.arguments import Settings
    from gangline.mapreduce.sinks import Folded, Kept
    from gangline.mapreduce.work import Work

_AHEAD = 4
"""How many results each worker may be ahead of who reads them."""


def run_loop(settings: Settings, work: Work, sink: Folded | Kept, *, progress: bool) -> Mapped:
    """Does all chunks, and combines what comes of them."""
    begun = time.perf_counter()
    with queues_of(settings, work.function, total=work.num_rows) as (queues, decisions):
        dispatch = Dispatch(settings, queues)
        crew = Crew(settings, work, dispatch, sink)
        if work.num_rows == 0:  # so that what comes of nothing has the right form
            sink.put(0, Part(0, 0, work.do(0, 0, settings.devices[0])[0]))
        else:
            _follow(crew, dispatch, work, progress=progress)
    choice = settings.choice or queues.choice
    return Mapped(
        value=sink.value(),
        failures=tuple(sorted(crew.failures, key=lambda failure: failure.start)),
        num_failed=crew.num_failed,
        scheme=str(choice.scheme),
        layout=str(choice.layout),
        victim=str(choice.victims),
        decisions=tuple(decisions),
        workers=settings.workers,
        devices=settings.devices,
        chunks_of=tuple(tally.chunks for tally in crew.tallies),
        rows_of=tuple(tally.rows for tally in crew.tallies),
        busy_s=tuple(tally.busy_s for tally in crew.tallies),
        overhead_s=sum(tally.overhead_s for tally in crew.tallies),
        stolen=sum(tally.stolen for tally in crew.tallies),
        lost=dict(dispatch.lost),
        seconds=time.perf_counter() - begun,
    )


def _follow(crew: Crew, dispatch: Dispatch, work: Work, *, progress: bool) -> None:
    if crew.is_alone and not progress:
        crew.run_alone()
        if dispatch.error is not None:
            raise dispatch.error
        return
    with crew, _bar(work, progress) as bar:
        while not crew.wait(None if bar is None else TICK_S):
            if bar is not None:
                bar.show(crew.rows_done)
        if dispatch.error is not None:
            raise dispatch.error


def stream_loop(settings: Settings, work: Work, *, progress: bool) -> Iterator[Part]:
    """The results, as they come or in the order of the rows. Ends the workers when it is closed."""
    if work.num_rows == 0:
        return
    stream = Stream(ahead=_AHEAD * settings.workers)
    with contextlib.ExitStack() as stack:
        queued = queues_of(settings, work.function, total=work.num_rows)
        dispatch = Dispatch(settings, stack.enter_context(queued)[0])
        crew = stack.enter_context(Crew(settings, work, dispatch, stream))
        stack.callback(stream.close)
        bar = stack.enter_context(_bar(work, progress))
        parts = _arriving(stream, crew, work.num_rows, bar)
        yield from in_order(parts, crew.failed_rows) if settings.ordered else parts
        if dispatch.error is not None:
            raise dispatch.error


def _arriving(stream: Stream, crew: Crew, total: int, bar: Bar | None) -> Iterator[Part]:
    left = total
    while left > crew.num_failed_rows:
        part = stream.take(TICK_S)
        if part is not None:
            left -= part.stop - part.start
            yield part
        elif crew.wait(0) and stream.is_empty:
            return  # by an error
        if bar is not None:
            bar.show(crew.rows_done)


def _bar(work: Work, progress: bool) -> contextlib.AbstractContextManager[Bar | None]:
    return Bar(work.num_rows, name=name_of(work.function)) if progress else contextlib.nullcontext()
