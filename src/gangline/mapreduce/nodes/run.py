# SPDX-License-Identifier: Apache-2.0
"""A loop over the nodes of a job, in rounds: all say what they have done, then they do what is missing.

Whoever is lost, in whichever stage, leaves rows that nobody has. The others find that when they meet,
and do them in another round. So a row counts once: of results that overlap, all take the same.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from gangline.collectives import gather_bytes
from gangline.collectives.transports import WireDoor
from gangline.mapreduce.combining import FOLDED, fold_all, join
from gangline.mapreduce.crew import MAX_FAILURES
from gangline.mapreduce.loop import run_loop
from gangline.mapreduce.nodes.handout import Handout, Range, missing_ranges
from gangline.mapreduce.nodes.listing import Listing, chosen
from gangline.mapreduce.nodes.naming import name_everywhere
from gangline.mapreduce.nodes.pulling import Holder, Pairs, pull_from, pull_own
from gangline.mapreduce.nodes.sending import pack_result, unpack_result
from gangline.mapreduce.result import Failure, Mapped, Part
from gangline.mapreduce.sinks import sink_for
from gangline.mapreduce.work import rows_text
from gangline.paramserver.service.link import ASKER
from gangline.spec.errors import (
    ExchangeError,
    FunctionError,
    GanglineError,
    UnsupportedError,
)
from gangline.spec.exchange.address import WireAddress
from gangline.worker.groups.beside import LossWatch
from gangline.worker.job import job
from gangline.worker.together.alike import add_alike
from gangline.worker.together.calls import collective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives import Group
    from gangline.mapreduce.arguments import Settings
    from gangline.mapreduce.sinks import How
    from gangline.mapreduce.work import Work
    from gangline.worker.session import Session

_WATCH_S = 0.05
_MAX_TEXT = 4000
"""What a node says of an error is cut here."""
_END_S = 5.0
"""How long the node that hands out waits for the others to hear that all is done."""


class NodeLoop:
    """One node's part in a loop."""

    def __init__(self, settings: Settings, work: Work, combine: How) -> None:
        assert settings.between is not None
        self._session = job.opened()
        self._settings = settings
        self._between = settings.between
        self._work = work
        self._combine = combine
        self._name = (
            f"gangline.map({name_everywhere(work.function)}, {work.num_rows} rows, "
            f"combine={combine if isinstance(combine, str) else name_everywhere(combine)}, "
            f"scheme={settings.between.scheme})"
        )
        self._done: dict[Range, bytes] = {}
        self._busy_s = 0.0
        self._error = ""
        self._failures: list[Failure] = []
        self._num_failed = 0
        _check_job(self._session)

    def run(self) -> Mapped:
        """Meets the others and does rows, until everybody has all results."""
        begun = time.perf_counter()
        while True:
            said, blobs = collective(self._name, self._meet)
            listings = [msgspec.msgpack.decode(one, type=Listing) for one in said]
            for listing in listings:
                if listing.error:
                    raise FunctionError(f"worker {listing.worker}: {listing.error}")
            missing = missing_ranges(self._work.num_rows, list(chosen(listings)))
            if not missing:
                return self._mapped(listings, blobs, time.perf_counter() - begun)
            self._pull(listings, missing)

    def _meet(self, group: Group) -> tuple[list[bytes], list[bytes]]:
        """What all have done; and if that is everything, the results."""
        worker, nothing = self._session.place.worker, torch.zeros(0, dtype=torch.float64)
        add_alike(group, nothing, name=self._name, worker=worker)
        said = gather_bytes(group, msgspec.msgpack.encode(self._listing()))
        listings = [msgspec.msgpack.decode(one, type=Listing) for one in said]
        cover = chosen(listings)
        is_over = any(listing.error for listing in listings)
        if is_over or missing_ranges(self._work.num_rows, list(cover)):
            return said, []
        own = [(*rows, self._done[rows]) for rows, place in cover.items() if place == group.rank]
        return said, gather_bytes(group, msgspec.msgpack.encode(own))

    def _listing(self) -> Listing:
        door = self._session.door
        return Listing(
            worker=self._session.place.worker,
            address=door.address if door is not None else WireAddress(host="", port=0),
            nonce=secrets.token_hex(8),
            done=sorted(self._done),
            busy_s=self._busy_s,
            error=self._error,
            failures=self._failures,
            num_failed=self._num_failed,
        )

    def _pull(self, listings: Sequence[Listing], missing: Sequence[Range]) -> None:
        """Does rows until nothing is missing, or somebody is lost."""
        workers = [listing.worker for listing in listings]
        own = self._session.place.worker
        if own not in workers:  # it was told what others did in a group that it was not in
            time.sleep(_WATCH_S)
            return None
        place = workers.index(own)
        handout = Handout(missing, self._between, nodes=len(workers))
        if len(workers) == 1:
            return pull_own(handout, self._do, lambda: False)
        pairs = Pairs(self._session, name=f"map/{listings[0].nonce}")
        with LossWatch(self._session, pairs) as watch:
            if place == 0:
                peers = [(n, one.worker, one.address) for n, one in enumerate(listings) if n]
                holder = Holder(pairs, handout, peers)
                try:
                    return pull_own(handout, self._do, watch.is_lost)
                finally:
                    holder.close(0.0 if watch.is_lost() else _END_S)
            try:
                group = pairs.with_asker(own, listings[0].address, rank=ASKER)
                pull_from(group, self._do, watch.is_lost)
            except ExchangeError:
                return None  # all meet again, and see who is left
            finally:
                pairs.close()

    def _do(self, rows: Range) -> bool:
        """Does a range of rows with this node's threads; whether the loop goes on."""
        part = self._work.part(*rows)
        sink = sink_for(self._combine, self._settings)
        begun = time.perf_counter()
        try:
            mapped = run_loop(self._settings, part, sink, progress=False)
            is_empty = mapped.num_failed == mapped.chunks
            packed = b"" if is_empty else pack_result(mapped.value, rows=rows_text(*rows))
        except GanglineError as error:  # it ends the loop on all nodes, not on this one alone
            self._error = str(error)[:_MAX_TEXT]
            return False
        self._done[rows] = packed
        self._busy_s += time.perf_counter() - begun
        self._num_failed += mapped.num_failed
        self._failures = [*self._failures, *mapped.failures][:MAX_FAILURES]
        return True

    def _mapped(self, listings: list[Listing], blobs: list[bytes], seconds: float) -> Mapped:
        parts = [
            Part(start, stop, unpack_result(blob))
            for payload in blobs
            for start, stop, blob in msgspec.msgpack.decode(
                payload, type=list[tuple[int, int, bytes]]
            )
            if blob
        ]
        parts.sort(key=lambda part: part.start)
        cover = chosen(listings)
        ranges = [[rows for rows in cover if cover[rows] == n] for n in range(len(listings))]
        failures = [failure for listing in listings for failure in listing.failures]
        return Mapped(
            value=_combined(self._combine, parts),
            failures=tuple(sorted(failures, key=lambda one: one.start)[:MAX_FAILURES]),
            num_failed=sum(listing.num_failed for listing in listings),
            scheme=str(self._between.scheme),
            layout=str(self._between.layout),
            victim=str(self._between.victims),
            decisions=(),
            workers=len(listings),
            chunks_of=tuple(len(some) for some in ranges),
            rows_of=tuple(sum(stop - start for start, stop in some) for some in ranges),
            busy_s=tuple(listing.busy_s for listing in listings),
            overhead_s=0.0,
            stolen=0,
            lost={},
            seconds=seconds,
        )


def _combined(combine: How, parts: list[Part]) -> Any:
    if combine == "list":
        return [value for part in parts for value in part.value]
    if isinstance(combine, str) and combine not in FOLDED:
        return join(combine, parts)
    return fold_all(combine, parts)


def _check_job(session: Session) -> None:
    if job.whole is not None:
        raise UnsupportedError(
            "where='job' while groups train at their own pace: they are at different places. Call it "
            "before prepare(), or train with sync='full'"
        )
    if session.door is not None and not isinstance(session.door, WireDoor):
        raise UnsupportedError("where='job' needs the transport wire or wire-tcp")
