# SPDX-License-Identifier: Apache-2.0
"""Who uses which samples where groups train at their own pace: ranges of the epoch, on lease.

A team's leases, one after the other, are its own order of the epoch; how far it has come in it is its
offset. Samples count as used when the parameters that they moved were merged with the other teams':
then they are committed, up to the offset at which the copy was taken. What a lost team had not
committed goes back, and is somebody else's.

Where each worker has its own data, a team's samples are a range of the epoch that nobody else can use
(its estate): it is lent nothing else. What is free and in nobody's estate is gone.

How large a lease is, a scheme says. By `halves`, the default, it is half of the team's part of what is
left, by its speed: four steps at most, one at the end, so that nobody asks often and all end together.
By a scheme of `scheduling`, such as `GSS`, the epoch is the loop, its samples the items, and the teams
share it; what the scheme says is rounded up to whole steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control.chunking import ChunkSizes, check_scheme
from gangline.spec.errors import UsageError
from gangline.spec.leases import Lease, TeamOrder, leave_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HALVES = "halves"
"""The name of the rule that is the default."""
PARTS = 2
"""By it, a lease is a team's fair part of what is left, divided by this."""
MAX_STEPS = 4
"""But no more than so many steps: a team may become slow, and what it has then, nobody else can do. The
next lease is asked for while this one is used, so that short ones cost a message and no time."""


def check_lease_scheme(name: str) -> str:
    """`name`, if leases can be sized by it. Raises UsageError otherwise."""
    if name != HALVES:
        check_scheme(name)
    return name


class _Account:
    """What one team was given in the present epoch, and how much of it is committed."""

    def __init__(self) -> None:
        self.order = TeamOrder()
        self.committed = 0
        self.is_ended = False
        """Whether it was told that nothing is left. Its members act on that at different times, so
        it stays so until all teams have met."""
        self.shared = 0
        """How much of it is in the parameters of other teams, though not of all."""
        self.carriers: frozenset[int] = frozenset()
        """Those teams."""
        self.void: list[Lease] = []
        """Parts of its own order that it has computed, and that count nothing: others have them."""
        self.is_slow = False
        """Whether what it computed last came two rounds too late, or more."""

    @property
    def safe(self) -> int:
        """How much of it is not lost with the team."""
        return max(self.committed, self.shared if self.carriers else 0)

    @property
    def num_committed(self) -> int:
        """How many of its samples are in everybody's parameters."""
        return self.committed - sum(
            max(0, min(void.stop, self.committed) - void.start) for void in self.void
        )

    def locate(self, start: int, stop: int) -> list[Lease]:
        """Where in the epoch's order a part of its own order is, without what is void."""
        parts = leave_out(start, stop, self.void)
        return [lease for part in parts for lease in self.order.locate(*part)]


class LeaseBook:
    """The samples of one epoch: what is free, who has what, and what is committed."""

    def __init__(
        self,
        epoch: int,
        length: int,
        estates: Mapping[int, Lease] | None = None,
        *,
        scheme: str = HALVES,
    ) -> None:
        """`estates`: by team, the samples that it alone can use; None: any team can use any."""
        self.epoch = epoch
        self._scheme = scheme
        self.length = length
        self.estates = estates
        self._is_closed = False
        """Whether all were told that the epoch is over: who comes back later has no more of it."""
        self._free: list[Lease] = [Lease(0, length)] if length else []
        self._returned: list[Lease] = []
        """Free, too: what came too late when it was computed first. Who is slow gets none of it."""
        self._accounts: dict[int, _Account] = {}
        self._lost: dict[int, _Account] = {}
        """Of teams that are no more."""

    @property
    def num_free(self) -> int:
        """How many samples nobody has."""
        return sum(lease.stop - lease.start for lease in (*self._free, *self._returned))

    @property
    def num_committed(self) -> int:
        """How many samples are in everybody's parameters."""
        accounts = (*self._accounts.values(), *self._lost.values())
        return sum(account.num_committed for account in accounts)

    @property
    def is_complete(self) -> bool:
        """Whether every sample is committed that somebody can use."""
        return self._is_closed or self.num_committed + self.num_gone == self.length

    def close(self) -> None:
        """All teams are told that the epoch is complete."""
        self._is_closed = True

    @property
    def num_gone(self) -> int:
        """How many samples nobody has who could use them: they went with their owners."""
        if self.estates is None:
            return 0
        found = [_within(self._everything, one) for one in self.estates.values()]
        return self.num_free - sum(one.stop - one.start for part in found for one in part)

    @property
    def _everything(self) -> list[Lease]:
        return [*self._free, *self._returned]

    def order_of(self, team: int) -> TeamOrder:
        """What a team was given."""
        account = self._accounts.get(team)
        return TeamOrder() if account is None else account.order

    def grant(
        self,
        team: int,
        number: int,
        *,
        batch: int,
        part: float,
        teams: int = 1,
        is_paused: bool = False,
        reserved: int = 0,
    ) -> Lease:
        """The `number`-th lease of a team whose steps take `batch` samples; empty: nothing is free.

        `part` is its part of the speed of all that train, which are `teams`. Asking again gives the
        same lease. Where the book is paused nothing new is given, so that all teams come to an end.
        So many samples are `reserved` for teams that have yet to ask for their first lease.
        """
        account = self._accounts.setdefault(team, _Account())
        if number < len(account.order):
            return account.order.leases[number]
        lendable = self._lendable(team, account)
        room = self.num_free - reserved
        if len(account.order) == 0 or self.estates is not None:
            room = max(room, batch)
        if is_paused or not lendable or room <= 0:
            account.is_ended = True
        if account.is_ended:
            return Lease(0, 0)
        steps = self._num_steps(batch, part, teams)
        start, stop = lendable[0]
        lease = Lease(start, min(stop, start + min(steps * batch, room)))
        self.restore(team, *lease)
        return lease

    def _lendable(self, team: int, account: _Account) -> list[Lease]:
        """What is free for a team.

        What came too late before is not for a slow team: all would wait for it at the end. Who just
        came last in a round is not slow: among equals somebody does in every round.
        """
        if self._is_closed:
            return []
        if self.estates is not None:
            return _within(self._everything, self.estates.get(team, Lease(0, 0)))
        others = (one for number, one in self._accounts.items() if number != team)
        is_for_others = account.is_slow and any(not one.is_slow for one in others)
        return self._free or ([] if is_for_others else self._returned)

    def _num_steps(self, batch: int, part: float, teams: int) -> int:
        """How many steps of `batch` samples a team with this part of the speed is lent next."""
        if self.estates is not None:  # nobody else could do any of it
            return MAX_STEPS
        if self._scheme == HALVES:
            return min(MAX_STEPS, max(1, int(self.num_free * part / PARTS / batch)))
        sizes = ChunkSizes(
            self._scheme,
            total=self.length,
            workers=teams,
            weights=_weights(part, teams),
            count=self._num_given,
        )
        return -(-sizes.next(0, self.num_free) // batch)

    @property
    def _num_given(self) -> int:
        """How many leases were given in this epoch."""
        accounts = (*self._accounts.values(), *self._lost.values())
        return sum(len(account.order) for account in accounts)

    def has_ended(self, team: int) -> bool:
        """Whether a team was told that nothing is left."""
        account = self._accounts.get(team)
        return account is not None and account.is_ended

    def end(self, team: int) -> None:
        """A team was told that nothing is left: as it was once written down."""
        self._accounts.setdefault(team, _Account()).is_ended = True

    def restore(self, team: int, start: int, stop: int) -> None:
        """Gives a team these samples, which nobody has: as it was once written down.

        Raises UsageError where somebody has one of them: what was written down is not consistent.
        """
        for free in (self._free, self._returned):
            found = [i for i, one in enumerate(free) if one.start <= start < stop <= one.stop]
            if found:
                break
        else:
            raise UsageError(
                f"samples {start} to {stop} of epoch {self.epoch} cannot be team {team}'s: they are "
                "not free. The journal of who has which samples contradicts itself: start the job "
                "anew, from its newest checkpoint if it has one"
            )
        place = found[0]
        rest = (Lease(free[place].start, start), Lease(stop, free[place].stop))
        free[place : place + 1] = [one for one in rest if one.start < one.stop]
        self._accounts.setdefault(team, _Account()).order.append(Lease(start, stop))

    def reopen(self) -> None:
        """All teams have met: who was told that nothing is left may ask again."""
        for account in self._accounts.values():
            account.is_ended = False

    def commit(self, team: int, offset: int) -> None:
        """The team's samples up to this offset of its order are in everybody's parameters."""
        account = self._lost.get(team) or self._accounts.setdefault(team, _Account())
        account.committed = max(account.committed, min(offset, account.order.given))

    def void(self, team: int, start: int, stop: int, *, late_by: int = 0) -> list[Lease]:
        """This part of a team's order counts nothing, though it was computed: it is free again.

        `late_by` says by how many rounds it came too late, if that is why.
        """
        account = self._lost.get(team) or self._accounts.setdefault(team, _Account())
        returned = account.locate(start, stop)
        if not returned:
            return []
        account.void += leave_out(start, stop, account.void)
        account.is_slow = late_by > 1
        (self._returned if late_by else self._free).extend(returned)
        return returned

    def note_in_time(self, team: int) -> None:
        """What a team has computed last came in time."""
        self._accounts.setdefault(team, _Account()).is_slow = False

    def share(self, offsets: Mapping[int, int]) -> None:
        """These teams, and no others, were merged: each one's samples are in all their parameters."""
        for team, offset in offsets.items():
            account = self._accounts.setdefault(team, _Account())
            account.shared = min(offset, account.order.given)
            account.carriers = frozenset(offsets) - {team}

    def carried_by(self, teams: Iterable[int]) -> dict[int, int]:
        """Of lost teams whose samples are in these teams' parameters: how many are."""
        return {
            team: account.shared
            for team, account in self._lost.items()
            if account.safe > account.committed and account.carriers.intersection(teams)
        }

    def uncommitted(self, team: int) -> tuple[Lease, ...]:
        """What a team was given and has not committed."""
        account = self._accounts.get(team)
        if account is None:
            return ()
        return tuple(account.locate(account.committed, account.order.given))

    def take_back(self, team: int) -> dict[int, list[Lease]]:
        """The team is lost, and what is in nobody else's parameters is free again.

        That may also be samples of a team that was lost before, if this one had carried them on.
        """
        returned: dict[int, list[Lease]] = {}
        account = self._accounts.pop(team, None)
        if account is not None:
            self._lost[team] = account
            returned[team] = account.locate(account.safe, account.order.given)
        for number, other in (*self._accounts.items(), *self._lost.items()):
            safe = other.safe
            other.carriers -= {team}
            if number in self._lost and other.safe < safe:
                returned.setdefault(number, []).extend(other.locate(other.safe, safe))
        self._free += [lease for leases in returned.values() for lease in leases]
        return returned


def _within(leases: Iterable[Lease], estate: Lease) -> list[Lease]:
    """What of these is in an estate."""
    found = (Lease(max(one.start, estate.start), min(one.stop, estate.stop)) for one in leases)
    return [one for one in found if one.start < one.stop]


def _weights(part: float, teams: int) -> list[float]:
    """The weight of a team that has `part` of the speed, in place of team 0, and those of the others.

    They share what is left of the speed; a team without any would get nothing at all.
    """
    own = min(max(part, 1e-6), 1.0)
    rest = max(1.0 - own, 1e-6)
    return [own, *[rest / max(1, teams - 1)] * (teams - 1)]
