# SPDX-License-Identifier: Apache-2.0
"""The samples of the present epoch, lent to teams; what is granted, merged and lost is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control.sync.leasing import HALVES, LeaseBook
from gangline.coordinator.kept.records import (
    Applied,
    Closed,
    Emptied,
    Leased,
    Merged,
    TeamLost,
    Voided,
)
from gangline.protocol.messages import LeaseGranted
from gangline.spec.errors import UsageError
from gangline.spec.leases import Lease

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.coordinator.kept.records import AnyRecord, Journal
    from gangline.coordinator.teams.chronicle import Chronicle
    from gangline.coordinator.teams.team import Team
    from gangline.protocol.messages import LeaseAsked, Reached


class Lending:
    """The book of the epoch, and what must be known of it after a restart."""

    def __init__(self, journal: Journal, chronicle: Chronicle, *, scheme: str = HALVES) -> None:
        """`scheme` says how large leases are."""
        self._journal = journal
        self._chronicle = chronicle
        self._scheme = scheme
        self._estates: dict[int, Lease] | None = None
        """By team, where each worker has its own data: the samples that it alone can use."""
        self.book = self._open(-1, 0)

    def _open(self, epoch: int, length: int) -> LeaseBook:
        return LeaseBook(epoch, length, self._estates, scheme=self._scheme)

    @property
    def is_owned(self) -> bool:
        """Whether each worker has its own data."""
        return self._estates is not None

    def settle_estates(self, estates: dict[int, Lease] | None) -> None:
        """These teams train from here on, each with its own data; None: all read the same."""
        self._estates = estates
        self.book.estates = estates

    def grant(
        self,
        team: Team,
        asked: LeaseAsked,
        *,
        part: float,
        teams: Sequence[Team],
        is_paused: bool,
    ) -> LeaseGranted | None:
        """What a team gets that has this part of the speed of all, which are `teams`.

        Raises UsageError for it to read.
        """
        self._begin_epoch(asked)
        known = len(self.book.order_of(team.number))
        if asked.epoch < self.book.epoch or asked.number > known:
            return None  # it was asked long ago, perhaps by a member of another team
        had_ended = self.book.has_ended(team.number)
        lease = self.book.grant(
            team.number,
            asked.number,
            batch=team.batch,
            part=part,
            teams=max(1, len(teams)),
            is_paused=is_paused,
            reserved=sum(
                one.batch
                for one in teams
                if one is not team and not len(self.book.order_of(one.number))
            ),
        )
        if self.book.has_ended(team.number) and not had_ended:
            self._journal.append(Emptied(team=team.number, epoch=asked.epoch))
        if lease.start < lease.stop and asked.number >= known:
            self._keep(team, asked.number, lease)
        return LeaseGranted(
            epoch=asked.epoch, number=asked.number, start=lease.start, stop=lease.stop
        )

    def _begin_epoch(self, asked: LeaseAsked) -> None:
        """Opens another epoch. Raises UsageError where the present one is not over."""
        book = self.book
        if asked.epoch > book.epoch and not (book.is_complete or book.epoch < 0):
            raise UsageError(
                f"LeaseAsked with epoch = {asked.epoch}: {book.length - book.num_committed} samples "
                f"of epoch {book.epoch} are not merged yet. Teams cannot leave an epoch before its end"
            )
        if asked.epoch > book.epoch:
            self.book = self._open(asked.epoch, asked.length)
        elif asked.epoch == book.epoch and asked.length != book.length:
            raise UsageError(
                f"LeaseAsked with length = {asked.length}: epoch {book.epoch} has {book.length} samples"
            )

    def open_in_the_middle(self, team: Team, reached: Reached) -> None:
        """Workers that trained in step are to part, and have used the first samples of an epoch."""
        if reached.offset > reached.length:
            raise UsageError(
                f"Reached with offset = {reached.offset}: the epoch has {reached.length} samples"
            )
        self.book = self._open(reached.epoch, reached.length)
        if reached.offset:
            self.book.restore(team.number, 0, reached.offset)
            self._keep(team, 0, Lease(0, reached.offset))

    def _keep(self, team: Team, number: int, lease: Lease) -> None:
        record = Leased(
            team=team.number,
            epoch=self.book.epoch,
            length=self.book.length,
            number=number,
            start=lease.start,
            stop=lease.stop,
        )
        self._journal.append(record)
        self._chronicle.lease(record)

    def merge(self, merged: Merged) -> None:
        """Teams were merged: their samples count where all teams have them."""
        self._journal.append(merged)
        self.replay(merged)

    def apply(self, applied: Applied) -> None:
        """The parameter servers have an update for good: its samples count."""
        self._journal.append(applied)
        self._chronicle.apply(applied)
        self.replay(applied)

    def void(self, voided: Voided) -> None:
        """What a team has computed counts nothing: its samples are free again."""
        self._journal.append(voided)
        self._chronicle.void(voided)
        self.replay(voided)

    def end_epoch(self, *, is_complete: bool) -> None:
        """All teams have met: the epoch is over, or who was told that nothing is left may ask again."""
        self.book.reopen()
        if is_complete:
            self.book.close()

    def take_back(self, team: int) -> tuple[int, Lease | None]:
        """A team is lost: how many samples are free again, or the estate that is gone with it."""
        self._journal.append(TeamLost(team=team))
        count = 0
        for number, leases in self.book.take_back(team).items():
            count += sum(lease.stop - lease.start for lease in leases)
            self._chronicle.give_back(number, self.book.epoch, leases)
        return count, self._lose_estate(team)

    def _lose_estate(self, team: int) -> Lease | None:
        return None if self._estates is None else self._estates.pop(team, None)

    def replay(self, record: AnyRecord) -> None:
        """What a record means for the book."""
        match record:
            case Leased(team=team, epoch=epoch, length=length):
                if epoch > self.book.epoch:
                    self.book = self._open(epoch, length)
                self.book.restore(team, record.start, record.stop)
            case Emptied(team=team, epoch=epoch) if epoch == self.book.epoch:
                self.book.end(team)
            case Closed(is_complete=is_complete):
                self.end_epoch(is_complete=is_complete)
            case Merged(is_all=False, offsets=offsets):
                self.book.share(offsets)
            case Merged(offsets=offsets):
                for team, offset in offsets.items():
                    self.book.commit(team, offset)
            case Applied(epoch=epoch, offsets=offsets) if epoch == self.book.epoch:
                for team, offset in offsets.items():
                    self.book.commit(team, offset)
                    self.book.note_in_time(team)
            case Voided(team=team, epoch=epoch, start=start, stop=stop) if epoch == self.book.epoch:
                self.book.void(team, start, stop, late_by=record.late_by)
            case TeamLost(team=team):
                self.book.take_back(team)
                self._lose_estate(team)
