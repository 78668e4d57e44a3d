# SPDX-License-Identifier: Apache-2.0
"""This worker's membership in the group that exchanges gradients: entering, losing, entering anew.

Nothing here raises into the user's loop because somebody else died. A failed exchange marks the group
as broken and tells the coordinator; the next time the loop comes to a place where it may wait (the
next batch, a `mean`), this worker waits for a view with a new group, enters it, and goes on from where
the furthest member is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from torch import Tensor

from gangline.collectives import GroupKey
from gangline.collectives.transports import make_group
from gangline.protocol.messages import Failed, FetchState
from gangline.spec.errors import ExchangeError, MismatchError
from gangline.spec.event import Regrouped
from gangline.spec.position import BETWEEN, VOID
from gangline.worker.groups.handing_down import fetch
from gangline.worker.groups.regroup import Results, Truth, become_alike
from gangline.worker.session import now

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group
    from gangline.protocol.messages import Stopped
    from gangline.spec.position import Position
    from gangline.spec.view import View
    from gangline.worker.groups.probation import Probation
    from gangline.worker.groups.refounding import Refounding
    from gangline.worker.groups.snapshot import Snapshot
    from gangline.worker.prepare.handshake import Introduction
    from gangline.worker.session import Session

T = TypeVar("T")

BACKWARD = "backward()"
_VERDICT_S = 1.0
"""How long to wait for the coordinator to say whose loop differs."""
_KEPT_LONG = 1000
"""So many small results of calls between epochs are kept for those that come back much later."""
_SMALL = 64
"""A result of so many numbers is small."""


class Membership:
    """Enters groups, and makes the members of a new one alike."""

    def __init__(
        self,
        session: Session,
        introduction: Introduction,
        snapshot: Snapshot,
        *,
        group: int,
        team: int,
        probation: Probation,
        refounding: Refounding,
    ) -> None:
        self._session = session
        self._introduction = introduction
        self._snapshot = snapshot
        self._probation = probation
        self._refounding = refounding
        self._has_state = not session.is_late
        """Whether this worker has the state of the job: a newcomer copies it first."""
        self._broken_s: float | None = None
        self._error: Exception | None = None
        """What broke the group."""
        self.doing = BACKWARD
        """The exchange that this worker is in, or was in last, for people."""
        self.before_entering: Callable[[View], None] = lambda view: None
        """Called before a group is entered, with its view."""
        self.group = group
        """The number of the group that this worker is in, or was in last."""
        if session.client is not None:
            session.client.entered = group
            session.client.team = team
        self.num_truths = 0
        """How often this worker was told where the others are, and became like them."""
        self.results: Results = {}
        self._old_results: Results = {}
        """Small ones of calls between epochs that are long past."""

    @property
    def is_broken(self) -> bool:
        """Whether the group is lost, so that nothing can be exchanged."""
        client = self._session.client
        return self._broken_s is not None or (client is not None and client.has_moved)

    def move(self, *, keeps_state: bool) -> None:
        """This worker's team is no more, and it enters another one: nothing of the old one counts.

        Its state counts where all teams have just been merged, and then only: else others have gone
        on, and it enters as a newcomer does.
        """
        client, door = self._session.client, self._session.door
        assert client is not None
        assert door is not None
        client.withdraw(Failed)
        client.has_moved = False
        client.entered = self.group = -1
        door.forget_groups()
        self._has_state = keeps_state
        self.forget_calls()  # an epoch's order is that of all teams

    def fail(self, error: ExchangeError | MismatchError, position: Position) -> None:
        """An exchange failed. Raises it where nobody could mend the group, or the loops differ."""
        client = self._session.client
        if client is None:
            raise error
        self._error = error
        is_mismatch = isinstance(error, MismatchError)
        if self._broken_s is None:
            self._broken_s = time.perf_counter()
        if not client.has_moved:  # else it is known, and the new team's groups have other numbers
            client.send(
                Failed(
                    group=self.group,
                    step=position.step,
                    error=str(error),
                    position=tuple(position),
                    call=self.doing,
                    is_mismatch=is_mismatch,
                )
            )
        if is_mismatch or not client.is_elastic:
            raise_stopped(error, client.await_stop(_VERDICT_S))

    def forget_loss(self) -> None:
        """Nothing was lost with the group: its members only gave a state to others."""
        self._broken_s = self._error = None

    def find_loss(self) -> Exception | None:
        """An exchange has failed and the script ended before it could be repeated: why; else None."""
        client = self._session.client
        if self._error is None or self._broken_s is None or client is None:
            return None
        lost = MismatchError(
            f"the script ended right after an exchange that failed ({self.doing}: {self._error}): its "
            "last step is lost. Let the loop go on to its end, or agree on the end by gangline.any()"
        )
        stopped = client.await_stop(_VERDICT_S)
        return lost if stopped is None else MismatchError(stopped.reason)

    def recover(self, position: Position) -> tuple[View | None, Truth] | None:
        """Waits for a new group with this worker in it, and enters it; None: this worker may go.

        Or it is told, in no group, where the others are, and has their state: then there is no view.
        """
        client = self._session.client
        assert client is not None
        while True:
            worker = self._session.place.worker
            found = self._probation.await_group(client, self.group, worker=worker)
            if found is None:
                return None
            if isinstance(found, FetchState):
                view, truth = None, self._fetch(found)
            else:
                view, truth = found, self.enter(found, position)
            if truth is not None:
                return view, truth

    def _fetch(self, offer: FetchState) -> Truth | None:
        """Takes over the state with which the others begin an epoch; None where that failed."""
        found = fetch(self._session, offer, group=self.group)
        if found is None:
            return None
        self._snapshot.load(found.state)
        self.results, self._old_results = found.results, {}
        self.num_truths += 1
        return Truth(found.position, found.results, was_behind=True, num_behind=0)

    def enter(self, view: View, position: Position) -> Truth | None:
        """Leaves the old group for that of `view`; None where that one failed already."""
        if self._broken_s is None:
            self._broken_s = time.perf_counter()
        self.before_entering(view)
        self.group = view.group
        client = self._session.client
        door = self._session.door
        assert client is not None
        assert door is not None
        client.entered = view.group
        client.team = view.team
        # Teams number their groups each for itself, and the founders met in another one before.
        key = GroupKey(run=self._session.place.run, view=view.group, attempt=1 + view.team)
        communicator = self._session.communicator
        try:
            communicator.make(
                lambda: make_group(
                    door,
                    key,
                    worker=self._session.place.worker,
                    members=view.members,
                    addresses=client.addresses(view.number),
                    structure=view.structure,
                )
            )
            if client.newest_recovery > view.group:  # it came while there was nothing to abort
                communicator.group.abort()
            truth = communicator.call(
                lambda group: become_alike(
                    group,
                    self._introduction,
                    self._snapshot,
                    position=position,
                    results=self.known_results,
                    has_state=self._has_state,
                    found_anew=lambda group: self._refounding.begin(
                        group, is_team=view.whole is not None
                    ),
                )
            )
        except ExchangeError as error:
            self.fail(error, position)
            return None
        self.results, self._old_results = truth.results, {}  # the old ones are among them
        self._has_state = True
        self.num_truths += 1
        self._record(view, truth)
        self._broken_s = self._error = None
        return truth

    def call(self, key: tuple[Any, ...], exchange: Callable[[Group], T]) -> T:
        """One collective call outside of a step; its result is kept for who is behind."""
        if key in self._old_results:
            old: T = self._old_results[key]
            return old
        if key not in self.results:
            self.results[key] = self._session.communicator.call(exchange)
        result: T = self.results[key]
        return result

    @property
    def known_results(self) -> Results:
        """Those of calls that are kept, for who is behind."""
        return {**self._old_results, **self.results}

    def knows(self, key: tuple[Any, ...]) -> bool:
        """Whether the result of a call is kept."""
        return key in self.results or key in self._old_results

    def forget_behind(self, position: Position) -> None:
        """Drops what nobody at this position can be behind for, and what counted nothing.

        A loop may go by what it is told between epochs (to stop early). So those results are kept for
        long where they are small: who comes back many epochs later decides as the others did.
        """
        behind = {
            key: value
            for key, value in self.results.items()
            if key[0] == VOID or position.is_behind(key)
        }
        for key, value in behind.items():
            del self.results[key]
            if key[0] == BETWEEN and _is_small(value):
                self._old_results[key] = value
        while len(self._old_results) > _KEPT_LONG:
            del self._old_results[next(iter(self._old_results))]

    def forget(self, is_old: Callable[[tuple[Any, ...]], bool]) -> None:
        """Drops results that nobody can be behind for any more."""
        self.results = {key: value for key, value in self.results.items() if not is_old(key)}

    def forget_calls(self) -> None:
        """All members have come to the same place: nobody is behind for a call in a step before it."""
        self.forget(lambda key: isinstance(key[0], int))

    def _record(self, view: View, truth: Truth) -> None:
        assert self._broken_s is not None
        self._session.record(
            Regrouped(
                t=now(),
                worker=self._session.place.worker,
                view=view.number,
                group=view.group,
                members=list(view.members),
                step=truth.position.step,
                num_behind=truth.num_behind,
                took_s=time.perf_counter() - self._broken_s,
                reason=view.reason,
                team=0 if view.whole is None else view.whole.team,
            )
        )


def _is_small(result: Any) -> bool:
    """Whether a result is worth keeping for long: a number, a word, a few of them."""
    if isinstance(result, Tensor):
        return result.numel() <= _SMALL
    if isinstance(result, tuple | list):
        return len(result) <= _SMALL and all(_is_small(part) for part in result)
    if isinstance(result, str | bytes):
        return len(result) <= 8 * _SMALL
    return isinstance(result, int | float)


def raise_stopped(error: Exception, stopped: Stopped | None) -> NoReturn:
    """Raises an error of this worker's, with what the coordinator says of the others' loops."""
    if stopped is None:
        raise error
    if isinstance(error, ExchangeError):
        raise MismatchError(stopped.reason) from error
    places = f"Where they are: {stopped.places}" if stopped.places else ""
    more = ". ".join(part for part in (places, stopped.hint) if part)
    if not more:
        raise error
    raise MismatchError(f"{error}. {more}") from error
