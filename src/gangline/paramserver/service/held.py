# SPDX-License-Identifier: Apache-2.0
"""A shard on the worker that holds it: answers requests, and keeps the replica up with them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from gangline.paramserver.service.answering import values_for
from gangline.paramserver.service.messages import (
    Advancing,
    Answer,
    Done,
    Forgetting,
    Loading,
    Pulling,
    PullingState,
    Pushing,
    PushingEarly,
    Refused,
    Request,
    Resetting,
    State,
    Values,
)
from gangline.paramserver.service.pieces import PiecesMissing
from gangline.paramserver.service.pushes import gradient_from, push_of
from gangline.paramserver.service.replication import Pull, Replication
from gangline.spec.errors import ExchangeError, GradientError, MismatchError, ServerLost
from gangline.spec.serving import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.paramserver.service.link import Link
    from gangline.paramserver.service.shard import Shard
    from gangline.spec.serving import Entry, Serving

_log = logging.getLogger(__name__)
_REFUSALS = (
    (PiecesMissing, "missing"),
    (GradientError, "gradient"),
    (MismatchError, "mismatch"),
    (ExchangeError, "lost"),
)


class Held:
    """One shard, as its primary or as its replica."""

    def __init__(self, shard: Shard, *, own: int, patience_s: float) -> None:
        self.shard = shard
        self.is_whole = False
        """Whether it has all that was acknowledged: else it waits for that."""
        self._own, self._patience_s = own, patience_s
        self._changed = threading.Condition()
        self._number = -1
        self._is_primary = False
        self._is_closed = False
        self.replication = Replication(self._changed, self._export, self._lost)

    def follow(self, serving: Serving, replica: Link | None) -> Link | None:
        """A new number, and perhaps another part to play; returns the old link to the replica."""
        place = serving.shards[self.shard.number]
        with self._changed:
            old = self.replication.follow(replica)
            self._is_primary = place.primary == self._own
            self._number = serving.number
            if serving.source != NOBODY:
                self.is_whole = False
            elif serving.applied == 0:
                self.is_whole = True  # nothing was applied: it is what all begin with
            self._changed.notify_all()
        return old

    def wake(self) -> None:
        """Requests that wait here look whether they are still wanted, from any thread."""
        with self._changed:
            self._changed.notify_all()
        self.replication.wake()

    def close(self) -> None:
        """No request is answered any more."""
        self._is_closed = True
        self.wake()
        self.replication.close()

    def answer(
        self,
        request: Request,
        *,
        is_from_primary: bool = False,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Answer:
        """Answers a request; whatever is wrong with it is the answer."""
        try:
            self._await(request, is_from_primary, is_wanted)
            return self._do(request, is_from_primary, is_wanted)
        except (GradientError, MismatchError, ExchangeError) as error:
            kind = next(name for made, name in _REFUSALS if isinstance(error, made))
            return Refused(kind=kind, reason=str(error))
        except Exception as error:  # the user's optimizer may raise anything: who asked must know
            return Refused(kind="failed", reason=f"{type(error).__name__}: {error}")

    def _await(
        self, request: Request, is_from_primary: bool, is_wanted: Callable[[], bool]
    ) -> None:
        """Waits until this worker has heard what the other one knows, and holds the shard whole."""
        makes_whole = isinstance(request, Loading | Resetting)
        with self._changed:

            def is_ready() -> bool:
                knows = self._number == request.serving and (self.is_whole or makes_whole)
                return self._is_closed or not is_wanted() or knows or self._is_beyond(request)

            in_time = self._changed.wait_for(is_ready, self._patience_s)
            if self._is_closed or not is_wanted():
                raise self._lost("it was broken off")
            if self._is_beyond(request):
                raise self._lost(
                    f"the request is of serving {request.serving}, and this is {self._number}"
                )
            if not in_time:
                raise self._lost("it has not heard of the newest serving, or is not whole yet")
            of_both = isinstance(request, Pushing | PushingEarly | Forgetting)
            of_primary = isinstance(request, Loading | Advancing)
            if self._is_primary == is_from_primary or not (
                of_both or of_primary == is_from_primary
            ):
                raise self._lost("it is asked in another part than it plays")

    def _is_beyond(self, request: Request) -> bool:
        return self._number > request.serving

    def _lost(self, reason: str) -> ServerLost:
        return ServerLost(self.shard.number, f"worker {self._own}: {reason}")

    def _do(self, request: Request, is_from_primary: bool, is_wanted: Callable[[], bool]) -> Answer:
        if isinstance(request, Pulling):
            return self._pull(request, is_wanted)
        if isinstance(request, PullingState):
            with self._changed:
                self._apply(request.entries, request.upto)
                return State(applied=self.shard.applied, state=self.shard.state())
        with self._changed:
            self._take(request)
            applied = self.shard.applied
        if isinstance(request, Pushing | PushingEarly | Forgetting) and not is_from_primary:
            self.replication.pass_on(request, is_wanted)
        return Done(applied=applied)

    def _take(self, request: Request) -> None:
        """What changes the shard, and is answered by how far it is."""
        shard = self.shard
        if isinstance(request, Pushing):
            push = push_of((request.gradients, request.options))
            shard.stage(request.team, request.clock, push, request.early)
            self._advance(request)
        elif isinstance(request, PushingEarly):
            given = {index: gradient_from(one) for index, one in request.gradients.items()}
            shard.stage_early(request.team, request.clock, request.number, given)
            self._advance(request)
        elif isinstance(request, Forgetting):
            self._advance(request)
            shard.forget(request.team)
        elif isinstance(request, Advancing):
            self._advance(request)
        elif isinstance(request, Loading):
            shard.load(request.exported)
            self._become_whole()
        elif isinstance(request, Resetting) and not self.is_whole:
            shard.reset(request.values, request.applied, history=request.serving)
            self._become_whole()

    def _advance(self, request: Pushing | PushingEarly | Forgetting | Advancing) -> None:
        """Applies what the other one knows; for a replica, pulls come between the same updates."""
        for team, applied in request.pulls:
            if applied >= self.shard.applied:
                self._apply([e for e in request.entries if e.number < applied])
                self.shard.note_pull(team)
        self._apply(request.entries)

    def _become_whole(self) -> None:
        self.is_whole = True
        self.replication.begin_anew()
        self._changed.notify_all()

    def _apply(self, entries: Sequence[Entry], upto: int = 0) -> None:
        before = self.shard.applied
        try:
            self.shard.apply(entries)
        finally:
            new = range(before, self.shard.applied)
            known = {entry.number: entry for entry in entries}
            self.replication.note([known[number] for number in new])
        if self.shard.applied < upto:
            raise MismatchError(
                f"shard {self.shard.number} is asked for its values after {upto} updates, and was "
                f"given {self.shard.applied}: who pulls brings all entries that may be new"
            )

    def _pull(self, request: Pulling, is_wanted: Callable[[], bool]) -> Values:
        with self._changed:
            self._apply(request.entries, request.upto)
            shard = self.shard
            if shard.keeps_pulls:
                shard.note_pull(request.team)
                self.replication.note([Pull(request.team, shard.applied)])
            answer = values_for(shard, request)
        if self.shard.keeps_pulls:
            self.replication.pass_on(Advancing(serving=request.serving), is_wanted)
        return answer

    def load_replica(self) -> None:
        """Sends the replica everything now, rather than with the next push."""
        try:
            self.replication.pass_on(None, lambda: True)
        except ExchangeError as error:  # the next push tries again, and says so to who pushes
            _log.debug("shard %d: %s", self.shard.number, error)

    def _export(self) -> Loading:
        return Loading(serving=self._number, exported=self.shard.export())
