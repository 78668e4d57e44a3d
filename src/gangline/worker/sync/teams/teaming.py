# SPDX-License-Identifier: Apache-2.0
"""What a training has to do with teams: nothing, where all workers make every step together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.errors import ExchangeError
from gangline.worker.sync.teams.merging import Stages
from gangline.worker.sync.teams.teamwork import Teamwork

if TYPE_CHECKING:
    from gangline.spec.position import Position
    from gangline.spec.view import View
    from gangline.worker.gradients.agreement import Agreed, Statement
    from gangline.worker.groups.membership import Membership
    from gangline.worker.groups.snapshot import Snapshot
    from gangline.worker.groups.views import ViewSchedule
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.session import Session


class Teaming:
    """A worker's membership in a team, if it is in one; a failure breaks its group, as elsewhere."""

    def __init__(
        self,
        session: Session,
        prepared: Prepared,
        views: ViewSchedule,
        membership: Membership,
        snapshot: Snapshot,
    ) -> None:
        self.team: Teamwork | None = None
        """The team's part in the job; None where all workers are one."""
        self.is_cut_off = False
        """Whether the epoch was not cut to its end: the group broke while it waited for samples."""
        self._session = session
        self._prepared = prepared
        self._views = views
        self._membership = membership
        self._snapshot = snapshot
        membership.before_entering = self.take_up
        if views.newest.whole is not None:
            self._found(is_parting=False)

    def take_up(self, view: View) -> None:
        """Workers that were one are to part: from this view on they are a team, the first one."""
        if view.whole is not None and self.team is None:
            self._found(is_parting=True)

    def _found(self, *, is_parting: bool) -> None:
        self.team = Teamwork(
            self._session,
            self._prepared,
            self._prepared.sync,
            number=lambda: self.number,
            is_parting=is_parting,
        )
        self._snapshot.companion = self.team

    @property
    def number(self) -> int:
        """The team's number, 0 where there is only one."""
        whole = self._views.newest.whole
        return 0 if whole is None else whole.team

    @property
    def is_first(self) -> bool:
        """Whether this team speaks for the whole job, in what one worker does for all."""
        whole = self._views.newest.whole
        return whole is None or whole.first_rank == 0

    def reach(self, position: Position, start: int, stop: int, *, length: int) -> int:
        """How far the worker's group may go in its order of the epoch."""
        if self.team is None:
            return min(stop, length)
        if self.team.is_parting:
            self.team.length = length
            return start
        try:
            return self.team.reach(position.epoch, stop, length=length)
        except ExchangeError as error:
            self._membership.fail(error, position)
            self.is_cut_off = True
            return start

    def locate(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Where in the epoch's order a part of the group's own order is."""
        if self.team is None:
            return [(start, stop)]
        return [(lease.start, lease.stop) for lease in self.team.locate(start, stop)]

    def stated(self, statement: Statement) -> Statement:
        """What this worker says in the header of an exchange, with what it knows of rounds."""
        if self.team is None:
            return statement
        return statement._replace(**self.team.merging.stages._asdict())

    def after_step(self, agreed: Agreed | None, position: Position, *, step_s: float) -> None:
        """Goes on with the round that merges the teams, if there is one."""
        if self.team is None or agreed is None:
            return
        try:
            least, most = _stages(agreed.least), _stages(agreed.most)
            self.team.after_step(least, most, position, step_s=step_s)
        except ExchangeError as error:
            self._membership.fail(error, position)

    def come_over(self) -> bool:
        """Whether this worker was given another team, which it enters as if it had just come."""
        client = self._session.client
        if client is None or not client.has_moved:
            return False
        self._membership.move()
        if self.team is None:  # it was in step with all others, and missed that they parted
            self._found(is_parting=False)
        else:
            self.team.move()
        return True

    def close(self) -> None:
        """Ends what is under way."""
        if self.team is not None:
            self.team.close()


def _stages(said: Statement) -> Stages:
    return Stages(said.opened, said.arrived, said.held, said.closed)
