# SPDX-License-Identifier: Apache-2.0
"""An evaluation whose batches are pulled by the workers of a job, until none is left."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.collectives import gather_bytes
from gangline.mapreduce.nodes.handout import missing_ranges
from gangline.mapreduce.nodes.listing import Listing
from gangline.mapreduce.nodes.rounds import check_job, own_listing, pulled
from gangline.scheduling import Choice
from gangline.spec.errors import ExchangeError
from gangline.worker.api import evaluation_order, is_whole
from gangline.worker.job import job
from gangline.worker.samples.drawn_batches import BatchedIndices
from gangline.worker.samples.loader import rebuild
from gangline.worker.samples.loader_order import batching_of
from gangline.worker.together.alike import add_alike
from gangline.worker.together.calls import NOTHING, collective

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.utils.data import DataLoader

    from gangline.collectives import Group
    from gangline.mapreduce.nodes.handout import Range


def pulled_loader(loader: DataLoader[Any], scheme: str) -> DataLoader[Any]:
    """The same data, of which this worker gets the batches that it pulls."""
    choice = Choice.parse(scheme)
    session = job.opened()
    check_job(session, "evaluate(scheme=…)")
    indices = evaluation_order(loader)
    if is_whole(loader):
        return loader
    return rebuild(loader, PulledBatches(_batches(loader, indices), indices, choice))


class PulledBatches:
    """A batch sampler that asks for its next batches when those before are done.

    Every time that it is gone through, all workers share the batches anew.
    """

    def __init__(self, batches: Sequence[Range], indices: Sequence[int], choice: Choice) -> None:
        self._session = job.opened()
        self._batches = batches
        self._indices = indices
        self._choice = choice
        self._name = f"gangline.evaluate({len(batches)} batches, scheme={choice.scheme})"

    def __iter__(self) -> Iterator[list[int]]:
        done: list[Range] = []
        while True:
            listings = collective(self._name, lambda group: self._meet(group, done))
            missing = self._missing(listings)
            if not missing:
                return
            for start, stop in pulled(self._session, listings, missing, self._choice):
                for first, last in self._batches[start:stop]:
                    yield [int(index) for index in self._indices[first:last]]
                done.append((start, stop))

    def _meet(self, group: Group, done: list[Range]) -> list[Listing]:
        """What all have done."""
        add_alike(group, NOTHING, name=self._name, worker=self._session.place.worker)
        own = msgspec.msgpack.encode(own_listing(self._session, done=done))
        return [msgspec.msgpack.decode(said, type=Listing) for said in gather_bytes(group, own)]

    def _missing(self, listings: Sequence[Listing]) -> list[Range]:
        done = [rows for listing in listings for rows in listing.done]
        missing = missing_ranges(len(self._batches), done)
        count = sum(stop - start for start, stop in [*done, *missing])
        if count != len(self._batches):
            raise ExchangeError(
                f"{count - len(self._batches)} batches were evaluated by two workers, since the line "
                "between them was cut: what was added up counts them twice. Evaluate again"
            )
        return missing


def _batches(loader: DataLoader[Any], indices: Sequence[int]) -> list[Range]:
    """Where each batch begins and ends among the indices."""
    if isinstance(indices, BatchedIndices):
        return list(pairwise([0, *indices.stops]))
    size, length = batching_of(loader).batch_size, len(indices)
    return [(start, min(start + size, length)) for start in range(0, length, size)]
