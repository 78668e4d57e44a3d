# SPDX-License-Identifier: Apache-2.0
"""A simulated team's meetings with the others: the stages of a merge, each at the end of a step.

- begin: the team's copy is taken, and its leader exchanges it.
- share: the leaders have gone round, and the team is given the mean, beside its training.
- tell: the coordinator is told that the team has it.
- end: the team takes it, or drops it where another team was lost meanwhile.

At the end of an epoch, and where teams stop to be merged, a team waits and goes through them at once.
In `local(K)` it begins one after K steps, and waits for its end after K more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from gangline.protocol.messages import Holds, LeaseAsked, Pushed, Reached, RoundDone, Unserved
from gangline.simulation.course import Position
from gangline.simulation.engine.merging import bytes_of
from gangline.simulation.engine.progress import Merge, Progress
from gangline.simulation.reporting import epoch_event

if TYPE_CHECKING:
    from gangline.protocol.messages import EpochClosed, RoundOpened
    from gangline.simulation.engine.crew import Crew
    from gangline.simulation.engine.field import Field
    from gangline.simulation.engine.member import Member


class Meetings:
    """One group's part in the merges of all teams."""

    def __init__(self, crew: Crew, field: Field) -> None:
        self._crew = crew
        self._field = field
        self._waits_since: float | None = None
        self._is_end = False
        self._is_reached = False
        self._busy_until = 0.0

    @property
    def _progress(self) -> Progress:
        return self._crew.progress

    # --- stages ----------------------------------------------------------------------------------

    def find_stage(self) -> str:
        """The next stage that all members know they can go to; empty where there is none."""
        merge = self._progress.merge
        if self._crew.view.whole is None:
            return ""  # there are no other teams
        if merge is None:
            sync = self._progress.sync
            is_due = not sync.overlaps or self._progress.steps + 1 >= sync.steps
            return "" if not is_due or self._find_news() is None else "begin"
        if self._newest_closed >= merge.opened.number:
            return "end"
        if merge.held_s <= self._field.now:
            return "" if merge.is_told or self._took_s(merge) is None else "tell"
        if merge.held_s < math.inf:
            return ""  # it is on its way
        return "" if self._took_s(merge) is None else "share"

    @property
    def _newest_closed(self) -> int:
        return min(member.inbox.newest_closed for member in self._crew.members)

    def _find_news(self) -> RoundOpened | None:
        """The newest round that all members know of, and that they have not begun."""
        members = self._crew.members
        newest = min(member.inbox.newest_opened for member in members)
        if newest <= max(self._progress.last_round, self._newest_closed):
            return None
        return members[0].inbox.opened.get(newest)

    def _leader_in(self, opened: RoundOpened) -> Member | None:
        return next((one for one in self._crew.members if one.worker in opened.leaders), None)

    def _took_s(self, merge: Merge) -> float | None:
        leader = self._leader_in(merge.opened)
        if leader is None:
            return None  # it is gone: the round will count nothing
        return self._field.exchanges.took_s(merge.opened.number, leader)

    def advance(self, stage: str) -> float:
        """Beside the training: the team goes on to a stage; what that takes."""
        merge = self._progress.merge
        match stage:
            case "begin":
                news = self._find_news()
                return 0.0 if news is None else self._begin(news)
            case "share" if merge is not None:
                return self._share(merge, is_beside=self._crew.view.structure is None)
            case "tell" if merge is not None:
                self._tell(merge)
            case "end" if merge is not None:
                self._end(merge)
        return 0.0

    def _begin(self, opened: RoundOpened) -> float:
        """Takes the team's copy; its leader exchanges it."""
        progress, busy_s = self._progress, self._field.scenario.merge_s / 2
        progress.merge = merge = Merge(opened, progress.position.start, busy_s)
        progress.last_round = opened.number
        if progress.sync.overlaps and not opened.is_whole:
            progress.steps = 0

        def bring() -> None:
            leader = self._leader_in(opened)
            is_on = not self._crew.is_broken and self._progress.merge is merge
            if is_on and leader is not None and leader.is_able:
                self._field.exchanges.bring(opened, leader)

        self._field.later(busy_s, bring)
        return busy_s

    def _share(self, merge: Merge, *, is_beside: bool) -> float:
        """The leader's mean becomes the team's; what that takes from its computing."""
        field = self._field
        num_bytes = bytes_of(merge.opened, field.scenario)
        spread_s = field.network.spread_s(
            self._crew.costs.rows.tolist(), field.now, num_bytes=num_bytes
        )
        taking_s = field.scenario.merge_s / 2
        merge.held_s = field.now + taking_s + spread_s
        busy_s = taking_s if is_beside else taking_s + spread_s
        merge.busy_s += busy_s
        return busy_s

    def _tell(self, merge: Merge) -> None:
        leader, took_s = self._leader_in(merge.opened), self._took_s(merge)
        if leader is None or took_s is None:
            return
        merge.is_told = True
        leader.say(
            RoundDone(
                number=merge.opened.number,
                epoch=self._progress.position.epoch,
                offset=merge.mark,
                busy_s=merge.busy_s,
                exchange_s=took_s,
                drift=self._field.scenario.group_drift,
                sent_bytes=int(bytes_of(merge.opened, self._field.scenario)),
            )
        )

    def _end(self, merge: Merge) -> bool:
        """The round is over; whether it counts."""
        progress = self._progress
        progress.merge = None
        self._field.exchanges.end(merge.opened.number)
        closed = self._crew.members[0].inbox.closed.get(merge.opened.number)
        if closed is None:
            return False
        progress.sync = closed.sync
        return closed.is_committed

    # --- waiting for the other teams -------------------------------------------------------------

    def stop(self, *, is_end: bool) -> None:
        """Stops until all teams are merged."""
        if self._crew.is_broken:
            return
        self._waits_since, self._is_end, self._is_reached = self._field.now, is_end, False
        if is_end:
            self._crew.come_to("end")
            self._crew.come_to("call")
        self.look()

    def look(self) -> None:
        """While it waits: does what can be done for the merge under way, and for the next."""
        field, crew = self._field, self._crew
        if self._waits_since is None or crew.is_broken or self._busy_until > field.now:
            return  # if it is busy, it looks again then
        hung_until = max(member.life.hung_until for member in crew.members)
        if hung_until > field.now:
            field.clock.schedule(hung_until, self.look)
            return
        closed, progress = self._find_closed(), self._progress
        opened = crew.members[0].inbox.next_opening(self._progress.last_round)
        if self._progress.merge is not None:
            self._push(self._progress.merge)
        elif closed is not None and (opened is None or opened.number > closed.round):
            self._close(closed)
        else:
            self._reach()  # also where a round is open already: this may be a new group of the team
            news = self._find_news()
            if news is not None and not crew.pushing.is_settled(news.number, self.look):
                return
            busy_s = 0.0 if news is None else self._begin(news)
            is_beside = progress.sync.overlaps and not self._is_end
            if news is not None and is_beside and not news.is_whole:
                self._busy_until = field.now + busy_s
                field.later(busy_s, self._go_on_beside)

    def _go_on_beside(self) -> None:
        """The copy is taken, and the team goes on while it is merged."""
        if not self._crew.is_broken and self._waits_since is not None:
            self._resume()

    def _push(self, merge: Merge) -> None:
        """Everybody in the team waits for this round."""
        stage = self.find_stage()
        if stage == "share" and not all(one.life.is_alive for one in self._crew.members):
            self._crew.parting.fail()
        elif stage == "share":
            self._busy_until = self._field.now + self._share(merge, is_beside=False)
            self._field.clock.schedule(self._busy_until, self.look)
        elif stage == "tell":
            self._tell(merge)
        elif stage == "end":
            is_committed = self._end(merge)
            if is_committed and merge.opened.is_whole and not self._is_end:
                self._resume()
            else:
                self.look()
        elif self._field.now < merge.held_s < math.inf:
            self._field.clock.schedule(merge.held_s, self.look)

    def _reach(self) -> None:
        if self._is_reached:
            return
        self._is_reached = True
        progress, view = self._progress, self._crew.view
        is_parting = view.whole is not None and view.whole.is_root
        for member in self._crew.members:
            member.say(
                Reached(
                    epoch=progress.position.epoch,
                    offset=progress.position.start,
                    step=progress.position.step,
                    is_end=self._is_end,
                    after=progress.last_round,
                    closing=progress.last_closing,
                    length=(self._field.length or 0) if is_parting else 0,
                )
            )

    def _resume(self) -> None:
        self._note_wait()
        self._progress.steps = 0
        for member in self._crew.members:
            member.withdraw(Reached)
        self._field.progress_s = self._field.now
        self._crew.go_on()

    def _note_wait(self) -> None:
        if self._waits_since is not None:
            self._field.waited_s += self._field.now - self._waits_since
        self._waits_since = None

    # --- the end of an epoch ---------------------------------------------------------------------

    def _is_news(self, closed: EpochClosed | None) -> bool:
        if closed is None or self._waits_since is None or not self._is_end:
            return False
        is_new = closed.round > self._progress.last_closing
        is_own = self._crew.number in closed.teams
        return is_new and is_own and closed.epoch == self._progress.position.epoch

    def _find_closed(self) -> EpochClosed | None:
        """What all members know of how the epoch ended."""
        found = [member.inbox.epoch_closed for member in self._crew.members]
        return found[0] if all(self._is_news(one) for one in found) else None

    def _close(self, closed: EpochClosed) -> None:
        """All teams have come to the end of the epoch; where samples are left, this one goes on."""
        progress, crew = self._progress, self._crew
        progress.last_closing = closed.round
        progress.pulled = replace(progress.pulled, is_begun=False)
        progress.position = progress.position._replace(step=closed.step)
        for member in crew.members:
            member.inbox.forget_empty()
            member.asked = (-1, -1)
            member.withdraw(LeaseAsked)
        if closed.is_complete:
            crew.close_epoch(closed.step)
        if not crew.is_broken:
            self._resume()

    def must_part(self, member: Member) -> bool:
        """Whether a member knows that all workers are made other teams."""
        closed = member.inbox.epoch_closed
        return self._is_news(closed) and closed is not None and closed.regroup is not None

    def part(self, member: Member) -> None:
        """A member leaves this team for the one that it will be told of."""
        closed, field = member.inbox.epoch_closed, self._field
        position = self._progress.position
        assert closed is not None
        assert closed.regroup is not None
        if not self._crew.is_broken and self._waits_since is not None:
            field.waited_s += field.now - self._waits_since
        self._crew.is_broken = True
        self._crew.parting.let_go(member)
        epoch = position.epoch + closed.is_complete
        member.life.position = Position(step=closed.step, epoch=epoch)
        member.progress = Progress(
            closed.regroup,
            position=member.life.position,
            last_round=self._progress.last_round,
            last_closing=closed.round,
        )
        for kind in (Reached, LeaseAsked, RoundDone, Pushed, Unserved, Holds):
            member.withdraw(kind)
        member.inbox.leave_team()
        member.kept = -1
        member.asked = (-1, -1)
        if closed.is_complete:
            event = epoch_event(field.now, member.worker, position)
            field.sink(msgspec.structs.replace(event, team=self._crew.number))
        if field.epochs is not None and epoch >= field.epochs:
            field.finish([member])
        else:
            field.gathering.enter(member)
