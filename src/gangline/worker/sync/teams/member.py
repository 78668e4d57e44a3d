# SPDX-License-Identifier: Apache-2.0
"""Teams that train at their own pace, and are merged: the strategy of a worker that is in one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gangline.spec.errors import ExchangeError, UsageError
from gangline.worker.samples.order import Company
from gangline.worker.sync.strategy import EpochEnd, GroupLost, KeptAt
from gangline.worker.sync.teams.teamwork import Teamwork

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.protocol.messages import Heard
    from gangline.spec.position import Position
    from gangline.spec.view import View
    from gangline.worker.gradients.agreement import Agreed, RoundSection
    from gangline.worker.groups.membership import Membership
    from gangline.worker.groups.views import ViewSchedule
    from gangline.worker.line.client import ControlClient
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.session import Session
    from gangline.worker.sync.served.updates import ServedUpdates


class TeamMember:
    """Waits for the other teams as `Teamwork` does; where that fails, the own group is broken."""

    company = Company.APART
    kept_at = KeptAt.EPOCH  # only there are all teams alike
    waits_at_end = False

    def __init__(
        self,
        session: Session,
        prepared: Prepared,
        views: ViewSchedule,
        membership: Membership,
        *,
        is_parting: bool,
    ) -> None:
        """`is_parting` says that this is all workers of a job that was one: the first team."""
        assert session.client is not None
        self._client: ControlClient = session.client
        self._views = views
        self._membership = membership
        self._team = Teamwork(
            session,
            prepared,
            prepared.sync,
            view=lambda: views.newest,
            is_parting=is_parting,
        )

    @property
    def number(self) -> int:
        """The team's number."""
        whole = self._views.newest.whole
        return 0 if whole is None else whole.team

    @property
    def is_first(self) -> bool:
        """Whether this team speaks for the whole job, in what one worker does for all."""
        whole = self._views.newest.whole
        return whole is None or whole.first_rank == 0

    @property
    def section(self) -> RoundSection:
        """What this worker knows of rounds."""
        return self._team.merging.stages

    @property
    def updater(self) -> ServedUpdates | None:
        """The parameter servers, where there are any."""
        return self._team.served

    def reach(self, position: Position, start: int, stop: int, *, length: int) -> int:
        """As far as samples are lent to this team; who is to part goes no further."""
        if self._team.is_parting:
            self._team.length = length
            return start
        with self._breaking(position):
            return self._team.reach(position.epoch, stop, length=length)

    def locate(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Where in the epoch's order the team's leases are."""
        return [(lease.start, lease.stop) for lease in self._team.locate(start, stop)]

    def check_ahead(self) -> None:
        """Refuses it: the end of an epoch is where the teams meet."""
        raise UsageError(
            "the loop asks for the next epoch before it has computed the last batch of this one: "
            "where groups train at their own pace, each epoch has an end at which all of them "
            "meet. Compute what was fetched before iterating over the loader again"
        )

    def after_step(self, agreed: Agreed | None, position: Position, *, step_s: float) -> None:
        """Goes on with the round that merges the teams, if there is one."""
        if agreed is None:
            return
        try:
            least, most = agreed.least.rounds, agreed.most.rounds
            self._team.after_step(least, most, position, step_s=step_s)
        except ExchangeError as error:
            self._membership.fail(error, position)

    def resume(self, position: Position) -> None:
        """Stops for the other teams, where the old group had stopped for them."""
        with self._breaking(position):
            self._team.resume(position)

    def end_epoch(self, position: Position) -> EpochEnd:
        """Waits until all teams are merged; where they part in another way, until they have."""
        if self._membership.is_broken:
            raise GroupLost
        with self._breaking(position):
            closed = self._team.meet(position, is_end=True)
        assert closed is not None
        if closed.regroup is not None:
            self._team.renew(closed.regroup, epoch=position.epoch)
            self._client.wait_moved()
            self._membership.move(keeps_state=True)
        return EpochEnd(closed.step, closed.is_complete, has_moved=closed.regroup is not None)

    def add_up(
        self,
        values: Sequence[float],
        position: Position,
        *,
        call: tuple[int, int],
        name: str,
        payload: bytes,
    ) -> Heard:
        """What all teams bring, by way of the coordinator."""
        epoch, number = call
        with self._breaking(position):
            return self._team.add_up(values, epoch=epoch, call=number, name=name, payload=payload)

    def find_loss(self, position: Position) -> Exception | None:
        """Where teams are merged at the end of an epoch, none of them is the model before."""
        sync = self._team.sync
        if not sync.is_relaxed:
            return None
        return UsageError(
            f"the script ended {position.describe()}, inside of an epoch: where groups train "
            f"at their own pace (sync={str(sync)!r}) they are merged at its end, and these "
            "parameters are those of one group. Go through the loader to its end"
        )

    def follow(self, view: View) -> TeamMember:
        """A worker in a team stays in one."""
        return self

    def come_over(self) -> TeamMember:
        """This worker was given another team."""
        self._team.move()
        return self

    @property
    def stage(self) -> int:
        """The last round of merging that is over for this worker."""
        return self._team.merging.ended

    def catch_up(self, stage: int) -> None:
        """Ends the round that another member has ended already."""
        self._team.catch_up(stage)

    def export(self) -> dict[str, Any]:
        """What a member of the same team needs to go on as this one does."""
        return self._team.export()

    def load(self, state: dict[str, Any], /) -> None:
        """Becomes like the member that exported this."""
        self._team.load(state)

    def close(self) -> None:
        """Ends what is under way."""
        self._team.close()

    @contextmanager
    def _breaking(self, position: Position) -> Iterator[None]:
        """What fails while this worker waits breaks its group."""
        try:
            yield
        except ExchangeError as error:
            self._membership.fail(error, position)
            raise GroupLost from error
