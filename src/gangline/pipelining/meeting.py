# SPDX-License-Identifier: Apache-2.0
"""All workers meet, say where they stand, and are told the layout that the first of them has found."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec
import torch

from gangline.collectives import gather_bytes
from gangline.pipelining.standing import Decided, Standing, check_alike
from gangline.planning.pipelines.layout import best_layout
from gangline.spec.errors import ExchangeError, LeftBehindError, UnsupportedError
from gangline.spec.pipelines import Links
from gangline.spec.profile import Link
from gangline.worker.together.alike import add_alike
from gangline.worker.together.calls import collective

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.collectives import Group
    from gangline.planning.pipelines.single import Asked
    from gangline.spec.pipelines import Layer, Layout, Machine
    from gangline.worker.session import Session

NAME = "gangline.pipeline"


class Planner:
    """Finds layouts, on whichever worker is the first."""

    def __init__(
        self,
        layers: Sequence[Layer],
        global_batch: int,
        asked: Asked,
        *,
        keep_copies: bool,
        everybody: bool,
    ) -> None:
        self._layers, self._batch, self._asked = layers, global_batch, asked
        self._keep_copies, self._everybody = keep_copies, everybody
        self._last: Decided | None = None
        self._known: set[str] = set()

    def decide(self, standings: Sequence[Standing]) -> Decided:
        """The layout for those that are here; what it was, where they are those of before."""
        names = {one.machine.name for one in standings}
        if self._last is not None and self._known == names:
            return self._last
        links = Links(
            usual=Link(
                latency_s=statistics.median(one.link_s for one in standings),
                bytes_per_s=statistics.median(one.bytes_per_s for one in standings),
            )
        )
        machines = [one.machine for one in standings]
        try:
            found = self._plan(machines, self._asked, links)
        except UnsupportedError as error:
            is_new = all(one.view < 0 for one in standings)
            if is_new or self._asked.stages is None:
                return Decided(error=str(error))
            found = self._again(machines, links)  # fewer are left than stages were asked for
        if found.layout is not None:
            self._known, self._last = names, found
        return found

    def _again(self, machines: Sequence[Machine], links: Links) -> Decided:
        free = msgspec.structs.replace(self._asked, stages=None)
        try:
            return self._plan(machines, free, links)
        except UnsupportedError as error:
            return Decided(error=str(error))

    def _plan(self, machines: Sequence[Machine], asked: Asked, links: Links) -> Decided:
        layout, solutions = best_layout(
            self._layers,
            machines,
            self._batch,
            asked=asked,
            links=links,
            keep_copies=self._keep_copies,
            everybody=self._everybody,
        )
        return Decided(layout=layout, recompute=[one.way.recompute for one in solutions])


def meet(
    session: Session, planner: Planner, tell: Callable[[], Standing]
) -> tuple[list[Standing], Layout, list[bool]]:
    """Where everybody stands, and the layout to go on with. Who is lost on the way is left out."""

    def exchange(group: Group) -> tuple[list[bytes], list[bytes]]:
        if session.is_late:
            raise LeftBehindError(
                "this worker came later, or was taken for lost, and the others train without it: a "
                "pipeline is made of the workers that a job begins with"
            )
        nothing = torch.zeros(0, dtype=torch.float64)
        add_alike(group, nothing, name=NAME, worker=session.place.worker)
        said = gather_bytes(group, msgspec.msgpack.encode(tell()))
        standings = [msgspec.msgpack.decode(one, type=Standing) for one in said]
        check_alike(standings)
        own = b"" if group.rank else msgspec.msgpack.encode(planner.decide(standings))
        return said, gather_bytes(group, own)

    said, decided = collective(NAME, exchange)
    found = msgspec.msgpack.decode(decided[0], type=Decided)
    if found.layout is None:
        raise UnsupportedError(found.error)
    standings = [msgspec.msgpack.decode(one, type=Standing) for one in said]
    return standings, found.layout, found.recompute


def agree(session: Session, values: torch.Tensor) -> torch.Tensor:
    """The sum of some values over all workers, when everybody has come here."""
    total = values.clone()

    def exchange(group: Group) -> None:
        group.all_reduce(total)

    session.communicator.call(exchange)
    return total


def find_each_other(session: Session, error: ExchangeError) -> None:
    """Somebody was lost, or seems to be: all meet again in another group."""
    session.group.abort()
    if session.client is None:
        raise error
    session.found_again(ExchangeError(str(error)))
