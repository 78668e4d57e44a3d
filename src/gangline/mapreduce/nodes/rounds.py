# SPDX-License-Identifier: Apache-2.0
"""Rounds of a loop over the nodes of a job: all say what they have done, then do what is missing.

Whoever is lost, in whichever stage, leaves rows that nobody has. The others find that when they meet,
and do them in another round.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from gangline.collectives.transports import WireDoor
from gangline.mapreduce.nodes.handout import Handout
from gangline.mapreduce.nodes.listing import Listing
from gangline.mapreduce.nodes.pulling import Holder, Pairs, pull_from, pull_own
from gangline.paramserver.service.link import ASKER
from gangline.spec.errors import ExchangeError, UnsupportedError
from gangline.spec.exchange.address import WireAddress
from gangline.worker.groups.beside import LossWatch
from gangline.worker.job import job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gangline.mapreduce.nodes.handout import Range
    from gangline.scheduling import Choice
    from gangline.worker.session import Session

_WATCH_S = 0.05
_END_S = 5.0
"""How long the node that hands out waits for the others to hear that all is done."""


def check_job(session: Session, what: str) -> None:
    """Refuses jobs whose workers cannot ask each other."""
    if job.whole is not None:
        raise UnsupportedError(
            f"{what} while groups train at their own pace: they are at different places. Call it "
            "before prepare(), or train with sync='full'"
        )
    if session.door is not None and not isinstance(session.door, WireDoor):
        raise UnsupportedError(f"{what} needs the transport wire or wire-tcp")


def own_listing(session: Session, *, done: list[Range], **said: Any) -> Listing:
    """What this node says of itself."""
    door = session.door
    return Listing(
        worker=session.place.worker,
        address=door.address if door is not None else WireAddress(host="", port=0),
        nonce=secrets.token_hex(8),
        done=done,
        **said,
    )


def pulled(
    session: Session,
    listings: Sequence[Listing],
    missing: Sequence[Range],
    choice: Choice,
    has_failed: Callable[[], bool] = lambda: False,
) -> Iterator[Range]:
    """What this node does of the missing rows, until nothing is left or somebody is lost.

    A range counts as done when the next one is asked for. `has_failed` ends the loop for all nodes.
    """
    workers = [listing.worker for listing in listings]
    own = session.place.worker
    if own not in workers:  # it was told what others did in a group that it was not in
        time.sleep(_WATCH_S)
        return
    handout = Handout(missing, choice, nodes=len(workers))
    if len(workers) == 1:
        yield from pull_own(handout, lambda: False, has_failed)
        return
    pairs = Pairs(session, name=f"map/{listings[0].nonce}")
    with LossWatch(session, pairs) as watch:
        if workers.index(own) == 0:
            peers = [(n, one.worker, one.address) for n, one in enumerate(listings) if n]
            holder = Holder(pairs, handout, peers)
            try:
                yield from pull_own(handout, watch.is_lost, has_failed)
            finally:
                holder.close(0.0 if watch.is_lost() else _END_S)
            return
        try:
            group = pairs.with_asker(own, listings[0].address, rank=ASKER)
            yield from pull_from(group, watch.is_lost, has_failed)
        except ExchangeError:
            return  # all meet again, and see who is left
        finally:
            pairs.close()
