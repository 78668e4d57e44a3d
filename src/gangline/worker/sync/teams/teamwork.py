# SPDX-License-Identifier: Apache-2.0
"""A worker as a member of a team: which samples are the team's, and when it meets the other teams."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gangline.protocol.messages import (
    MAX_SUMMED,
    MAX_TOLD_BYTES,
    EpochClosed,
    Heard,
    LeaseAsked,
    Reached,
    RoundOpened,
    Told,
)
from gangline.spec.errors import UsageError
from gangline.spec.leases import Lease, TeamOrder
from gangline.spec.serving import IN_FORWARD, ONDEMAND
from gangline.spec.sync import LOCAL, parse_sync
from gangline.worker.sync.served.ahead import AheadUpdates
from gangline.worker.sync.served.forward import ForwardPulls
from gangline.worker.sync.served.ondemand import OnDemandUpdates
from gangline.worker.sync.served.updates import ServedUpdates
from gangline.worker.sync.teams.merging import Merging

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.spec.position import Position
    from gangline.spec.serving import Service
    from gangline.spec.sync import Sync
    from gangline.spec.view import View
    from gangline.worker.gradients.agreement import RoundSection
    from gangline.worker.line.client import ControlClient
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.session import Session


def _kind_of(service: Service) -> type[ServedUpdates]:
    """Who makes the updates that are asked for."""
    if service.ahead:
        return AheadUpdates
    if service.pull == IN_FORWARD:
        return ForwardPulls
    return OnDemandUpdates if service.rows == ONDEMAND else ServedUpdates


class Teamwork:
    """The team's order of the epoch, and its meetings with the other teams."""

    def __init__(
        self,
        session: Session,
        prepared: Prepared,
        sync: Sync,
        *,
        view: Callable[[], View],
        is_parting: bool = False,
    ) -> None:
        """`view` is what the members of this worker's team agreed on last."""
        assert session.client is not None
        self._view = view
        self.is_parting = is_parting
        """Whether this is all workers of a job that was one: they stop, and are made teams."""
        self.length = 0
        """Of the epoch in which they part."""
        self._client: ControlClient = session.client
        self.merging = Merging(session, prepared, view)
        self.sync = sync
        self._epoch = -1
        self._order = TeamOrder()
        self._last_closing = -1
        self._is_epoch_over = True
        self._session, self._prepared = session, prepared
        self.served: ServedUpdates | None = None
        """Where parameter servers make the updates."""
        self._former: ServedUpdates | None = None
        """What made them before: others may still ask it for the optimizer's state."""
        self._is_met = False
        """Whether the team has met the others since its last step."""
        if not is_parting:
            self._serve()

    def _serve(self) -> None:
        """Trains by the parameter servers that are asked for, if any are."""
        self._former, self.served = self.served, None
        service = self.sync.service
        if service is not None:
            self.served = _kind_of(service)(self._session, self._prepared, service, self._view)
        if self.served is not None or self._former is not None:
            self.merging.leave_out([] if self.served is None else self.served.parameters)

    # --- samples ---------------------------------------------------------------------------------

    def reach(self, epoch: int, stop: int, *, length: int) -> int:
        """How far the team's order goes: up to `stop`, or less where nothing more is to be had."""
        is_new = epoch != self._epoch
        if is_new:
            self._check_left(epoch)
            self._epoch, self._order, self._is_epoch_over = epoch, TeamOrder(), False
        if self.served is not None and (is_new or self._is_met):
            self.served.begin(epoch)
        self._is_met = False
        while self._order.given < stop:
            number = len(self._order)
            lease = self._lease(number, length)
            if lease.start == lease.stop:
                break
            self._order.append(lease)
            self._ask(number + 1, length)  # so that it is there when it is needed
        return min(stop, self._order.given)

    def _check_left(self, epoch: int) -> None:
        if not self._is_epoch_over:
            raise UsageError(
                f"the loop asked for epoch {epoch} before the end of epoch {self._epoch}: where groups "
                f"train at their own pace (sync={str(self.sync)!r}), the samples of an epoch are lent "
                "to them, and all must be used. Go through the loader to its end instead of leaving "
                "it by `break`, or train with sync='full'"
            )

    def _ask(self, number: int, length: int) -> None:
        self._client.send(LeaseAsked(epoch=self._epoch, number=number, length=length))

    def _lease(self, number: int, length: int) -> Lease:
        post, epoch = self._client.post, self._epoch
        if post.lease(epoch, number) is None:
            self._ask(number, length)
        granted = self._client.wait_post(lambda: post.lease(epoch, number), "samples")
        return Lease(granted.start, granted.stop)

    def locate(self, start: int, stop: int) -> list[Lease]:
        """Where in the epoch's order a part of the team's order is."""
        return self._order.locate(start, stop)

    # --- meeting the other teams -----------------------------------------------------------------

    def after_step(
        self, least: RoundSection, most: RoundSection, position: Position, *, step_s: float
    ) -> None:
        """A step was made, and all members of the team agree on these stages."""
        mark = (position.epoch, position.start)
        self.sync = self.merging.advance(least, most, mark=mark, sync=self.sync, step_s=step_s)
        self.stop_if_due(position)

    def stop_if_due(self, position: Position) -> None:
        """Where the team has made so many steps: waits for the others, or for its last merge."""
        if self.sync.kind == LOCAL and self.merging.num_steps >= self.sync.steps:
            self.meet(position, is_end=False)

    def resume(self, position: Position) -> None:
        """A new group goes on: with what the old one waited for when it broke."""
        if self.served is not None:
            self.served.resume()
        self.stop_if_due(position)

    def meet(self, position: Position, *, is_end: bool) -> EpochClosed | None:
        """Stops until all teams are merged; at the end of an epoch, how that ended."""
        self.sync = self.merging.complete(self.sync)
        if not is_end and not self.merging.num_steps:
            return None  # that was the round for which all teams stop
        mark = (position.epoch, position.start)
        if self.served is not None and is_end:
            self.served.flush(epoch=position.epoch, stop=position.start)
        self._client.send(
            Reached(
                epoch=mark[0],
                offset=mark[1],
                step=position.step,
                is_end=is_end,
                after=self.merging.last,
                closing=self._last_closing,
                length=self.length if self.is_parting else 0,
            )
        )
        try:
            return self._wait_merged(mark, is_end=is_end)
        finally:
            self._client.withdraw(Reached)

    def _wait_merged(self, mark: tuple[int, int], *, is_end: bool) -> EpochClosed | None:
        post = self._client.post
        while True:
            found = self._client.wait_post(partial(self._find_news, mark[0], is_end), "other teams")
            if isinstance(found, EpochClosed):
                self._last_closing = found.round
                self._is_epoch_over, self._is_met = found.is_complete, True
                post.forget_lease(self._epoch, len(self._order))
                self._close_former()
                if self.served is not None:
                    self.served.hand_back()
                    self.served.tell(mark[0])
                return found
            assert isinstance(found, RoundOpened)
            if self.served is not None:
                self.served.settle(mark[0], takes_state=self._is_main)
            self.merging.begin(found.number, mark, self.sync)
            if is_end or found.is_whole or not self.sync.overlaps:
                self.sync = self.merging.complete(self.sync)
            if not is_end and not self.merging.num_steps:
                return None

    def _close_former(self) -> None:
        former, self._former = self._former, None
        if former is not None:
            former.close()

    @property
    def _is_main(self) -> bool:
        """Whether this worker keeps checkpoints, so that it needs the optimizer's state."""
        whole = self._view().whole
        return whole is None or (whole.first_rank == 0 and self._session.group.rank == 0)

    def _find_news(self, epoch: int, is_end: bool) -> EpochClosed | RoundOpened | None:
        """What the coordinator says to a team that waits. Rounds come in order, for all members."""
        post = self._client.post
        opened = post.next_opening(self.merging.last)
        closed = post.epoch_closed
        if closed is None or not is_end:
            return opened
        is_news = closed.round > self._last_closing and closed.epoch == epoch
        is_news = is_news and max(self._view().team, 0) in closed.teams
        # Others may be in the next epoch already, and have had a round opened there.
        is_first = opened is None or opened.number > closed.round
        return closed if is_news and is_first else opened

    def catch_up(self, stage: int) -> None:
        """Ends the round that another member of the team has ended after the same step."""
        self.sync = self.merging.catch_up(stage, self.sync)

    # --- for members that come later -------------------------------------------------------------

    def export(self) -> dict[str, Any]:
        """What a member of the same team needs to go on as this one does."""
        return {
            "merging": self.merging.export(),
            "sync": str(self.sync),
            "closing": self._last_closing,
            "epoch": self._epoch,
            "order": [[*lease] for lease in self._order.leases],
            "is_over": self._is_epoch_over,
            "is_parting": self.is_parting,
            "is_met": self._is_met,
            "served": None if self.served is None else self.served.export(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Becomes like the member that exported this."""
        self.merging.load(state["merging"])
        self.sync = parse_sync(state["sync"])
        self._last_closing = state["closing"]
        self._epoch, self._is_epoch_over = state["epoch"], state["is_over"]
        self.is_parting, self._is_met = state["is_parting"], state["is_met"]
        if self.served is not None and state["served"] is not None:
            self.served.load(state["served"])
        self._order = TeamOrder(Lease(*lease) for lease in state["order"])

    def move(self) -> None:
        """This worker is given to another team."""
        self.merging.drop()
        self._forget_order()
        self._serve()  # its updates are another team's from here on, and its shards are others'
        self._close_former()

    def renew(self, sync: Sync, *, epoch: int) -> None:
        """All teams are merged, and this worker goes on in another one, which has no order yet."""
        self.is_parting, self.sync = False, sync
        self.merging.restart(epoch)
        self._forget_order()
        self._serve()

    def _forget_order(self) -> None:
        self._epoch, self._order, self._is_epoch_over = -1, TeamOrder(), True

    # --- sums ------------------------------------------------------------------------------------

    def add_up(
        self, values: Sequence[float], *, epoch: int, call: int, name: str, payload: bytes
    ) -> Heard:
        """The sum over all teams; every member of a team brings that of its team."""
        if len(values) > MAX_SUMMED or len(payload) > MAX_TOLD_BYTES:
            given = f"{len(payload)} bytes" if payload else f"{len(values)} values"
            raise UsageError(
                f"{name} was given {given} by this group: where groups train at their own pace these "
                f"go through the coordinator, at most {MAX_SUMMED} values of a sum or mean (its weight "
                f"is one of them), and {MAX_TOLD_BYTES} bytes that are gathered. Bring them together "
                "in parts"
            )
        post = self._client.post
        if post.heard(epoch, call) is None:
            told = Told(epoch=epoch, call=call, values=tuple(values), name=name, payload=payload)
            self._client.send(told)
        try:
            return self._client.wait_post(lambda: post.heard(epoch, call), "the other teams")
        finally:
            self._client.withdraw(Told)

    def close(self) -> None:
        """Ends what is under way."""
        self.merging.close()
        self._close_former()
        if self.served is not None:
            self.served.close()
