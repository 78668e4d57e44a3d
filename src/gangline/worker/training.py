# SPDX-License-Identifier: Apache-2.0
"""What `prepare` sets up: the prepared models, their exchange, and the steps they go through."""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gangline.collectives import SoloGroup
from gangline.spec.errors import (
    ExchangeAborted,
    ExchangeError,
    GanglineError,
    MismatchError,
    UnsupportedError,
    UsageError,
)
from gangline.spec.position import BETWEEN, NO_EPOCH, NOWHERE, ORDER, VOID, Position
from gangline.worker.checkpoint.state import RandomNumbers
from gangline.worker.checks.foreign import ForeignExchange
from gangline.worker.checks.gradient_checks import check_sizes
from gangline.worker.checks.guard import LayoutGuard
from gangline.worker.checks.rates import check_rates, rates_checksum
from gangline.worker.checks.scrutiny import Scrutiny
from gangline.worker.faults import Faults
from gangline.worker.gradients.agreement import Agreed, Statement
from gangline.worker.gradients.backward import after_closure, has_closure
from gangline.worker.gradients.buffers import Buffers, WholeNumbers
from gangline.worker.gradients.by_hand import (
    check_windows,
    refuse_other_optimizers,
    warn_of_windows,
)
from gangline.worker.gradients.exchange import Gradients, resolved
from gangline.worker.groups.leaving import Departure
from gangline.worker.groups.membership import BACKWARD, Membership
from gangline.worker.groups.probation import Probation
from gangline.worker.groups.snapshot import Snapshot
from gangline.worker.normalisation.sync_batchnorm import Place, SyncedBatchNorms
from gangline.worker.samples import sample_state
from gangline.worker.samples.fetched import Fetched, FetchedBatches
from gangline.worker.samples.order import Company
from gangline.worker.session import Session, now
from gangline.worker.teams.teaming import Teaming
from gangline.worker.telling.reports import (
    tell_epoch,
    tell_links,
    tell_pacing,
    tell_step,
    tell_view,
)
from gangline.worker.telling.stepclock import StepClock
from gangline.worker.together.alike import meet_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from gangline.collectives import Group
    from gangline.protocol.messages import Heard
    from gangline.spec.sync import Sync
    from gangline.spec.view import View
    from gangline.worker.checkpoint.resuming import Start
    from gangline.worker.gradients.layout import Layout
    from gangline.worker.groups.refounding import Refounding
    from gangline.worker.groups.regroup import Truth
    from gangline.worker.groups.views import Adoption, ViewSchedule
    from gangline.worker.instruments import Instruments
    from gangline.worker.prepare.handshake import Introduction
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.samples.handout import Handout
    from gangline.worker.samples.sample_state import SampleState
    from gangline.worker.teams.teamwork import Teamwork

T = TypeVar("T")

_NAMED = (ORDER, BETWEEN, VOID)
END_WAIT_S = 10.0
"""How long a worker whose script is over waits at most for others that come back."""

_NO_BATCH = (
    "backward() was called before the prepared loader handed out a batch: gangline weighs every "
    "gradient by the batch's share. Call backward() inside the loop over the loader that prepare() "
    "returned"
)
_ALL_OVER = (
    "backward() was called when the loop was done with every batch that it has fetched: a batch is "
    "over when the loop fetches another one after a step, and at the end of the epoch. Call backward() "
    "for all losses of a batch before that"
)


class Training:
    """Follows the user's loop: hand-out, backward passes, optimizer steps, the next hand-out."""

    def __init__(
        self,
        session: Session,
        prepared: Prepared,
        layout: Layout,
        *,
        introduction: Introduction,
        views: ViewSchedule,
        instruments: Instruments,
        refounding: Refounding,
    ) -> None:
        self.session = session
        self.prepared = prepared
        self.views = views
        self._batches = FetchedBatches(prepared.models, needs_step=bool(prepared.optimizers))
        self.position = Position.at_start()
        self.is_past = False
        """Whether the user's loop is in an epoch that the job has left behind: it is alone there."""
        self._loop_epoch = 0
        self._num_between = 0
        self._overtaken = NOWHERE
        self._is_in_epoch = False
        self._is_void = False
        self._is_finished = False
        self._must_cut = False
        """Whether what was cut ahead was cut for a group that is no more."""
        self._is_filling = False
        """Whether the loop is given the other parts of such a window, which count nothing."""
        self._has_rest = False
        """Whether the loop has left an epoch, of which somebody's samples are still to be used."""
        self._first_step = 0
        """The step with which the loop began the present epoch."""
        self._clock = StepClock()
        self._pacer, self._probe = instruments.pacer, instruments.probe
        self._checkpointer = instruments.checkpointer
        self._reduction = instruments.reduction
        self._share_watch = instruments.shares
        self._random = RandomNumbers()
        self._faults = instruments.faults or Faults()
        self._faults.watch(prepared.models)
        self._buffers = Buffers(prepared.models)
        self._whole_numbers = WholeNumbers(prepared.models)
        # Statistics are exchanged in the backward pass, too: in an order that all workers share.
        self._gradients = Gradients(
            layout, self._buffers, session.communicator, is_eager=not prepared.sync_batchnorm
        )
        self._norms = (
            SyncedBatchNorms(prepared.models, self, session.communicator)
            if prepared.sync_batchnorm
            else None
        )
        self._scrutiny = Scrutiny()
        self._foreign = ForeignExchange(layout.slots, is_shared=lambda: self.num_workers > 1)
        self._guard = LayoutGuard(prepared.models, prepared.optimizers, layout, self._foreign)
        self._snapshot = Snapshot(prepared, self._gradients.carried)
        self._membership = Membership(
            session,
            introduction,
            self._snapshot,
            group=views.newest.group,
            team=views.newest.team,
            probation=Probation(self._faults, prepared.models),
            refounding=refounding,
        )
        self._teaming = Teaming(session, prepared, views, self._membership, self._snapshot)
        self._agreed: Agreed | None = None
        self._hidden: list[torch.Tensor | None] | None = None
        self._departure = Departure(session)
        self._is_alone = session.client is None
        self._is_elastic = session.client is not None and session.client.is_elastic
        self._handles = [
            handle
            for optimizer in prepared.optimizers
            for handle in (
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            )
        ]
        if not prepared.optimizers:
            self._handles.append(refuse_other_optimizers(prepared.models))
        sample_state.watch(self)

    @property
    def handout(self) -> Handout | None:
        """What the batch is that the loop computes now."""
        present = self._batches.present
        return None if present is None else present.handout

    @property
    def shown(self) -> Handout | None:
        """What the batch is that the loop is at, for the questions that it asks."""
        shown = self._batches.shown
        return None if shown is None else shown.handout

    # --- the loader's side -----------------------------------------------------------------------

    @property
    def cut_from(self) -> Position:
        """From where on the loader cuts: behind what the loop has fetched and not computed yet."""
        newest = self._batches.newest
        if newest is None or newest.is_void:
            return self.position
        handout = newest.handout
        return self.position._replace(epoch=handout.epoch + 1, step=handout.step + 1, start=0)

    @property
    def _is_untouched(self) -> bool:
        """Whether the loop has only looked at batches of this epoch, if it has fetched any."""
        present = self._batches.present
        is_used = present is None or present.is_worked or self._batches.is_in_window
        return not is_used and self.position.step == self._first_step

    def view_for(self, step: int) -> tuple[View, int | None]:
        self._random.go_on()
        self._faults.reach("data", step)
        view = self.views.cut(step)
        self._teaming.take_up(view)
        worker = self.session.place.worker
        return view, view.rank_of(worker) if worker in view.members else None

    def view_now(self) -> tuple[View, int]:
        """The view of the present batch, and this worker's rank: behind all others if it has left."""
        view = self.views.newest if self.handout is None else self.views.at(self.handout.step)
        worker = self.session.place.worker
        return view, view.rank_of(worker) if worker in view.members else len(view.members)

    def rank_now(self) -> int:
        """This worker's place among the members by their numbers, whenever they came."""
        view, place = self.view_now()
        worker = self.session.place.worker
        return sorted(view.members).index(worker) if worker in view.members else place

    @property
    def company(self) -> Company:
        if self._teaming.team is not None:
            return Company.APART
        # What a checkpoint keeps of an order must be there when it is taken.
        is_free = self._is_alone and self._checkpointer is None
        return Company.ALONE if is_free else Company.TOGETHER

    def agree_on_order(self, exchange: Callable[[Group], T], key: tuple[str, int]) -> T:
        group = self._membership.group
        order = self.collective(exchange, key)
        # Where the group was lost meanwhile, the job may stand elsewhere: then the epoch is cut anew.
        is_void = self._is_void and self._membership.group != group
        self._teaming.is_cut_off = is_void or self.is_past
        return order

    def reach(self, start: int, stop: int, *, length: int) -> int:
        if self._teaming.is_cut_off:
            return start
        return self._teaming.reach(self.position, start, stop, length=length)

    def locate(self, start: int, stop: int) -> list[tuple[int, int]]:
        return self._teaming.locate(start, stop)

    @property
    def has_left(self) -> bool:
        """Whether this worker takes part no longer."""
        return self._departure.has_left

    @property
    def num_steps(self) -> int:
        """How many optimizer updates the job has made, as far as this loop has come."""
        present = self._batches.present
        is_stepped = present is not None and present.steps > 0 and present.handout.is_update
        return self.position.step + (
            is_stepped and not self._is_void and not self._gradients.is_replaying
        )

    @property
    def is_ended_by_script(self) -> bool:
        """Whether nobody has asked this worker to go: if it ends now, its script has ended."""
        return not (self.is_past or self._departure.is_wanted)

    def find_loss(self) -> Exception | None:
        """At the end of the script: what is lost by ending here; None where all is well."""
        if not self.is_ended_by_script:
            return None
        team = self._teaming.team
        if team is not None and team.sync.is_relaxed and self._is_in_epoch:
            return UsageError(
                f"the script ended {self.position.describe()}, inside of an epoch: where groups train "
                f"at their own pace (sync={str(team.sync)!r}) they are merged at its end, and these "
                "parameters are those of one group. Go through the loader to its end"
            )
        return self._membership.find_loss()

    @property
    def epoch(self) -> int:
        """The epoch that the job is in."""
        return self.position.epoch

    def skip_to_epoch(self, epoch: int) -> None:
        """The user's loop starts with this epoch."""
        self._loop_epoch = epoch

    def begin_epoch(self) -> bool:
        """The loop asks for an epoch; False where the job has left that one behind."""
        if not self._is_ahead_of_epoch():
            self.settle()
        if self.has_left:
            return False
        epoch, self._loop_epoch = self._loop_epoch, self._loop_epoch + 1
        self._clock.lap()
        self._batches.is_exhausted = False
        if not self._batches.is_empty:  # the end of the epoch before is still to be computed
            return True
        self._must_cut = False
        if epoch > self.position.epoch and not self.take_rest():
            self._set(epoch=epoch, start=0)
        # A batch that the loop has left before its step has the number of the one that comes now.
        self._forget_attempt()
        self._enter_epoch(epoch)
        return not self.is_past

    def _enter_epoch(self, epoch: int) -> None:
        self._num_between = 0
        self._first_step = self.position.step
        was_past = self.is_past or self._overtaken[0] > self.position.handed_out
        self.is_past, self._is_void = epoch < self.position.epoch, False
        self._is_in_epoch = not self.is_past
        self._arrive()
        if was_past and not self.is_past and self.position.start:
            self._snapshot.restore()  # what the loop did at the end of past epochs was done already
        elif not self.is_past:
            self._snapshot.take()  # with what the loop did between the epochs

    def _is_ahead_of_epoch(self) -> bool:
        """Whether the loop goes on to the next epoch before it has computed the end of this one."""
        newest = self._batches.newest
        if newest is None or newest.is_worked or newest.is_void:
            return False
        if not self._batches.is_exhausted or self._is_untouched:
            return False
        if self._teaming.team is not None:
            raise UsageError(
                "the loop asks for the next epoch before it has computed the last batch of this one: "
                "where groups train at their own pace, each epoch has an end at which all of them "
                "meet. Compute what was fetched before iterating over the loader again"
            )
        return True

    def hand_out(self, handout: Handout, weight: float | Future[float], batch: Any) -> None:
        """The loop gets a batch: to compute it now, or behind those that it has fetched before."""
        self._batches.add(handout, weight, batch, is_void=self._is_filling)
        self._clock.handed_out()
        if self._batches.present is None:
            self._take_up()

    def _take_up(self) -> None:
        """The loop goes on to the next batch that it has fetched, if it has one."""
        if self._batches.ahead and self._batches.ahead[0].handout.epoch > self.position.epoch:
            self._cross_epoch()
        batch = self._batches.take_up()
        if batch is None:
            return
        handout = batch.handout
        self._is_void = False
        # The parts of a window are of one step: the calls made in them are counted on.
        calls = self.position.calls if handout.micro else 0
        self._set(handed_out=handout.step, calls=calls)
        self._membership.forget(lambda key: key[0] == VOID or self.position.is_behind(key))
        self._gradients.start(
            batch.weight,
            is_update=handout.is_update,
            is_first=handout.micro == 0,
            part=handout.share / handout.total,
            num_done=self.position.phase,
        )
        if batch.is_void:
            self._void()
        if self._pacer is not None:
            self._pacer.begin(handout.share)
        if self._probe is not None:
            self._probe.begin()
        self._faults.reach("forward", handout.step)
        self._faults.begin()

    def _cross_epoch(self) -> None:
        """The loop had fetched batches of the next epoch before it computed the last of this one."""
        group = self._membership.group
        is_closed = self._batches.ahead[0].is_void or self._close_epoch()
        if is_closed and not self._batches.ahead[0].is_void:
            self._enter_epoch(self.position.epoch)
        self._must_cut = not is_closed or self._membership.group != group
        if self._must_cut:
            self._batches.void()

    def finish_batch(self) -> bool:
        """The loop came back for more. False where the rest of the epoch must be cut anew."""
        batch, newest = self._batches.present, self._batches.newest
        if self._batches.is_over or (batch is not None and self._is_void and batch.is_worked):
            self._exchange_kept()
            self._pass_over()
        elif batch is None:
            self._clock.lap()
        elif batch.is_worked:
            if self._is_elastic:  # otherwise what a worker has added up would be lost with it
                self._exchange_kept()
            self._snapshot.note()
        # A loop may count the parts of a window itself: it gets all parts of one that it has begun.
        is_amid = newest is not None and not newest.handout.is_update
        self._is_filling = self._must_cut and is_amid and not self.has_left
        if self._is_filling:
            return True
        must_cut, self._must_cut = self._must_cut, False
        return not (must_cut or self.has_left)

    def _pass_over(self) -> None:
        """The loop is done with the present batch, and goes on to the next that it has fetched."""
        since_s = self._clock.lap()
        batch = self._batches.present
        assert batch is not None
        self._batches.drop()
        if batch.is_void:
            self._snapshot.restore()
        elif batch.handout.is_update or self._is_void:
            self._finish_step(batch.handout)
        if self._must_cut or self.has_left:
            self._batches.void()
        self._take_up()
        self._clock.lap()
        if self._batches.present is not None:  # it was done for the batch that was fetched ahead
            self._clock.times.compute_s += since_s

    def _exchange_kept(self) -> None:
        """The loop goes on to another batch inside of `no_sync`: what it has added up is exchanged."""
        batch = self._batches.present
        is_kept = self._gradients.has_kept and batch is not None and batch.handout.is_update
        if batch is not None and is_kept and not (self._is_void or batch.is_void):
            warn_of_windows()
            self._exchange_local(batch.handout)

    def _leave_out(self) -> None:
        """The loop steps at a later batch than the present one, which it has made no pass of."""
        batches = self._batches
        while batches.present is not None and not batches.present.is_worked:
            if batches.shown is batches.present:
                return
            self._pass_over()

    def settle(self) -> None:
        """The loop is done with what it has fetched: so is its last step, and the epoch if it is."""
        batches, newest = self._batches, self._batches.newest
        if self._is_untouched and not batches.is_exhausted:
            batches.clear()
            self._loop_epoch = min(self._loop_epoch, self.position.epoch)
            self._membership.results.pop(("order", self.position.epoch), None)
        while batches.present is not None and (batches.present.is_worked or batches.is_exhausted):
            self._pass_over()
        if batches.is_in_window:
            self._gradients.leave_window()
        batches.clear()
        if batches.is_exhausted and self._is_in_epoch and not self.has_left:
            is_done = newest is None or self.position.start >= newest.handout.window_stop
            self._has_rest = not (is_done and self._close_epoch())
        batches.is_exhausted = False

    def take_rest(self) -> bool:
        """Whether there is more to do of the epoch that the loop has left; said once."""
        has_rest, self._has_rest = self._has_rest, False
        return has_rest

    def end_epoch(self) -> bool:
        """The loader has cut all there is. False where there is more to do."""
        self._exchange_kept()
        self._batches.is_exhausted = True
        if not self._batches.is_empty and self._teaming.is_cut_off:
            self._batches.void()
            self._batches.is_exhausted = self._teaming.is_cut_off = False
            return False
        if not self._batches.is_empty:  # the loop computes them first
            return True
        is_closed = self._close_epoch()
        self._must_cut = False  # nothing is cut ahead
        if not is_closed:
            return False
        if self.has_left or self.is_past or self.position.epoch >= self._loop_epoch:
            return True
        self._batches.is_exhausted = False  # this was the rest of an epoch before
        self._enter_epoch(self.position.epoch)
        return False

    def _close_epoch(self) -> bool:
        """All batches are done, here; False where somebody was lost and there is more to do."""
        epoch, samples = self.position.epoch, self.position.start
        self._random.go_on()
        self._gradients.stop()
        if self._teaming.is_cut_off:
            return self._cut_again()
        self._faults.reach("end", self.position.step)
        name, is_exhausted = "the end of an epoch", self._batches.is_exhausted
        self._batches.is_exhausted = False  # where this fails, nobody tries again
        numbers = self._whole_numbers
        meet = meet_in(name, worker=self.session.place.worker, checksums=numbers.checksums)
        differing = self.collective(meet, what=name, before=numbers.look)
        numbers.warn_of(differing, is_main=self.rank_now() == 0)
        is_complete = self.has_left or self._is_void or self._meet_teams()
        self._batches.is_exhausted = is_exhausted
        if self.has_left:
            return True
        if self._is_void:
            self._restart()
            if self.position.epoch == epoch:
                return False
        elif not is_complete:
            return False
        tell_epoch(
            self.session, epoch, step=self.position.step, samples=samples, team=self._teaming.number
        )
        self._is_in_epoch = False
        if self.position.epoch == epoch:
            self._set(epoch=epoch + 1, start=0)
        if self._teaming.team is not None:  # only here are all teams alike
            self._offer_checkpoint()
        if self._pacer is not None:
            tell_pacing(self.session, self._pacer)
        tell_links(self.session)
        return True

    def _cut_again(self) -> bool:
        """The group broke before the end of the epoch could be cut: True where this worker has left."""
        if self._membership.is_broken:
            self._recover()
        if not self.has_left:
            self._restart()
        return self.has_left

    def total_weight(self, own: float) -> Future[float]:
        def add(group: Group) -> float:
            total = torch.tensor([own], dtype=torch.float64)
            group.all_reduce(total)
            return float(total)

        return self.session.communicator.submit(add)

    def collective(
        self,
        exchange: Callable[[Group], T],
        key: tuple[Any, ...] | None = None,
        *,
        what: str = "the order of an epoch",
        before: Callable[[], None] = lambda: None,
    ) -> T:
        """A call that all workers make at the same place of their loops, outside of a step.

        `what` is its name, for people; `before` is called before every attempt, and may raise.
        """
        self._faults.reach("call", self.position.step)
        batches = self._batches
        if key is None and batches.is_exhausted and batches.is_complete and not batches.ahead:
            self.settle()  # the last batch was fetched before it was computed
        self._membership.doing = what
        try:
            if key is not None:
                return self._call(exchange, key, before)
            said, result = self._call(lambda group: (what, exchange(group)), None, before)
        finally:
            self._membership.doing = BACKWARD
        # Who is behind is given what the others got: that must have been the same call.
        if said != what:
            raise MismatchError(
                f"the workers do not make the same call: {what} here, {said} on the others. All "
                "workers must make the same gangline calls in the same order"
            )
        return result

    def _call(
        self,
        exchange: Callable[[Group], T],
        key: tuple[Any, ...] | None,
        before: Callable[[], None],
    ) -> T:
        while not self._is_alone_in(place := key or self._place_of_call()):
            if self._membership.is_broken and place not in self._membership.results:
                self._recover()
                continue
            before()
            try:
                result = self._membership.call(place, exchange)
                break
            except ExchangeError as error:
                self._membership.fail(error, self.position)
        else:
            result = exchange(SoloGroup())
        if key is None:
            self._set(calls=self.position.calls + 1)
            self._num_between += place[0] == BETWEEN
        return result

    def _place_of_call(self) -> tuple[Any, ...]:
        """Names the next collective call: by the step, or between two epochs by the next epoch."""
        # A loop may learn in the middle of a batch that the others are in a later epoch.
        if not self._is_in_epoch and not self._is_on_void_batch:
            return (BETWEEN, self._loop_epoch, self._num_between)
        place = (self.position.handed_out, self.position.calls)
        # What is computed in an attempt that counts nothing is not what the next one computes. Nor is
        # what the loop does behind an epoch of which there is more to do.
        counts = not (self._is_void or self._has_rest)
        is_made = place in self._membership.results or place < self._overtaken
        return place if counts or is_made else (VOID, *place)

    def _is_alone_in(self, place: tuple[Any, ...]) -> bool:
        """Whether the others make this call no more, and nobody remembers its result."""
        if self.has_left:
            return True
        is_in_step = place[0] not in (ORDER, BETWEEN)
        if is_in_step and (self.is_past or self._is_on_void_batch):
            return place not in self._membership.results
        is_made = (
            place < self._overtaken if place[0] not in _NAMED else self.position.is_behind(place)
        )
        return is_made and place not in self._membership.results

    def may_write(self, state: SampleState) -> bool:
        """Whether what the loop writes into a table counts: in a ghost it does not."""
        sample_state.check_write(
            state,
            self._buffers.tables,
            is_in_batch=self.shown is not None,
            is_late=self._gradients.num_exchanged > 0 and self.shown is self.handout,
        )
        return self.shown is not None and self.shown.samples > 0

    # --- backward passes -------------------------------------------------------------------------

    @property
    def _is_passing_through(self) -> bool:
        """Alone and with nothing to weigh, autograd's own gradients are the result."""
        return self._is_alone and (self.handout is None or self.handout.num_micros == 1)

    def begin_backward(self, losses: Any) -> None:
        for _ in range(self._batches.find(losses, is_weighed=not self._is_passing_through)):
            self._pass_over()
        if self._is_passing_through:
            self._gradients.carried.begin_pass(may_fail=False)
        else:
            self._guard.check()
            self._gradients.begin()

    def end_backward(self) -> None:
        if self._pacer is not None:
            self._pacer.settle()
        if self._probe is not None:
            self._probe.end()
        self._faults.drag()
        if self._is_passing_through:
            self._batches.count_pass()
            self._clock.computed()
            return
        if self._gradients.has_fired:
            self._batches.count_pass()
        if self.handout is None and self._gradients.has_fired:
            self._gradients.fail()
            raise UsageError(_NO_BATCH if self.position.handed_out < 0 else _ALL_OVER)
        self._check_pass()
        must_exchange = self._gradients.finish_local()
        self._clock.computed()
        if must_exchange and self.handout is not None:
            self._exchange(self.handout)

    def _check_pass(self) -> None:
        try:
            self._foreign.check_pass(lambda: self._gradients.has_fired)
        except UnsupportedError:
            self._gradients.fail()
            raise

    def fail_backward(self) -> None:
        if not self._is_passing_through:
            self._gradients.fail()

    @property
    def num_workers(self) -> int:
        """How many workers the job has, in all teams."""
        whole = self.views.newest.whole
        return self.session.group.size if whole is None else whole.workers

    def no_sync(self) -> Any:
        """A context in which backward passes add up locally."""
        check_windows(self.prepared)
        return self._gradients.paused()

    def _exchange(self, handout: Handout) -> None:
        statement = Statement(
            view=handout.view,
            epoch=handout.epoch,
            step=handout.step,
            micro=handout.micro,
            phase=0,
            gradients=0,
            buffers=0,
            rates=rates_checksum(self.prepared.optimizers),
            newest_view=self.views.held,
            last_cut=self.views.last_cut,
            usual=self._scrutiny.usual,
            evicts=int(self.prepared.evicts_wrong),
        )
        self._faults.reach("exchange", handout.step)
        try:
            agreed = self._gradients.exchange(self._teaming.stated(statement))
            check_sizes(agreed, self._scrutiny, self.session, self.views.at(handout.step))
        except (ExchangeError, MismatchError) as error:
            self._membership.fail(error, self.position)
            self._void()
            return
        self._clock.exchanged()
        self._agreed = agreed
        if self._reduction is not None and self.session.group.rank == 0:
            self._reduction.note(agreed, handout, self.views.at(handout.step))
        check_rates(agreed)
        adoption = self.views.agree(agreed)
        if adoption is not None and self.session.group.rank == 0:
            self.record_view(adoption)

    def record_view(self, adoption: Adoption) -> None:
        """Writes down from which step on a view holds, and why."""
        tell_view(self.session, adoption)
        if self._share_watch is not None:
            self._share_watch.look(adoption.view)

    # --- batch statistics, exchanged in the middle of a pass -------------------------------------

    @property
    def _passing(self) -> Fetched | None:
        """The batch that the present pass is of, forward or backward."""
        batches = self._batches
        return batches.present if self._gradients.in_backward else batches.forwarded

    def place_now(self) -> Place | None:
        """The batch that the loop works on; None where it works on none of the job's."""
        batch = self._passing
        if batch is None or self.is_past:
            return None
        handout = batch.handout
        return Place(handout.view, handout.epoch, handout.step, handout.micro)

    def weight_now(self) -> float:
        """How much the gradients of that batch count; 0 for a ghost."""
        batch = self._passing
        if batch is None or batch is self._batches.present:
            return self._gradients.weight
        return resolved(batch.weight)

    @property
    def is_void(self) -> bool:
        """Whether the attempt at that batch has failed already, or must fail."""
        return self._is_void or self._passing is None or self._passing.is_void

    @contextmanager
    def amid_computing(self) -> Iterator[None]:
        """An exchange before the local gradients are there: its time is none of computing."""
        self._clock.computed()
        if self._pacer is not None:
            self._pacer.pause()
        try:
            yield
        finally:
            if self._pacer is not None:
                self._pacer.resume()
            self._faults.wait(self._clock.exchanged())

    def lose(self, error: ExchangeError) -> None:
        """Such an exchange failed: the attempt is void."""
        self._membership.fail(error, self.position)
        self._void()

    # --- optimizer steps -------------------------------------------------------------------------

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        self._leave_out()
        handout = self.handout
        if self._is_passing_through or not self._gradients.num_exchanged:
            self._guard.check()  # else the backward pass did
        if handout is None or self._is_passing_through:
            return None
        if has_closure(args, kwargs):  # its backward pass is still to come
            return after_closure(args, kwargs, self._hide_unless_due)
        is_open = not self._gradients.num_exchanged or self._gradients.has_kept
        is_due = handout.is_update and not self._is_void and is_open
        if is_due:
            self._exchange_local(handout)
        self._hide_unless_due()
        return None

    def _exchange_local(self, handout: Handout) -> None:
        """Exchanges what backward passes have added up locally."""
        self._gradients.begin()
        self._batches.count_pass()
        if self._gradients.finish_local(is_forced=True):
            self._exchange(handout)

    def _hide_unless_due(self) -> None:
        """An optimizer is about to use the gradients: it must find none, unless they are the step's."""
        handout = self.handout
        if handout is None or not handout.is_update or self._gradients.is_replaying:
            self._hidden = self._gradients.hide()

    def _after_step(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: dict[str, Any]
    ) -> None:
        self._batches.count_step()
        self._snapshot.forget_note()
        if self._hidden is not None:
            self._gradients.show(self._hidden)
            self._hidden = None
        elif self.handout is not None and not self._is_passing_through:
            self._set(phase=self._gradients.num_exchanged)
            self._gradients.carried.commit()
            self._faults.reach("update", self.position.step)
        self._clock.updated()

    @property
    def _is_on_void_batch(self) -> bool:
        """Whether the loop computes a batch that was cut for a group that is no more."""
        return self._batches.present is not None and self._batches.present.is_void

    def _finish_step(self, handout: Handout) -> None:
        times = self._clock.take()
        if not self._is_void:
            self._set(step=handout.step + 1, phase=0, start=handout.window_stop)
            self._teaming.after_step(self._agreed, self.position, step_s=times.total_s)
            self._snapshot.take()
            if self._teaming.team is None:
                self._offer_checkpoint()
            tell_step(self.session, handout, times, team=self._teaming.number, probe=self._probe)
            self._faults.reach("between", handout.step)
        if self._membership.is_broken and not self.has_left:
            self._recover()
        view = self.views.at(self.position.step)
        if not self.has_left and self._departure.is_due(view):
            self._leave()
        if view.group != self._membership.group and not self.has_left:
            self._enter(view)
        if not self.has_left and (self._is_void or self._must_cut):
            self._restart()
            self._must_cut = True

    # --- teams that train at their own pace ------------------------------------------------------

    def _meet_teams(self) -> bool:
        """At the end of the epoch: waits for the other teams; False where there is more to do."""
        team = self._teaming.team
        while team is not None and not (self.has_left or self._is_void):
            if self._membership.is_broken:
                self._recover()
                continue
            try:
                closed = team.meet(self.position, is_end=True)
            except ExchangeError as error:
                self._membership.fail(error, self.position)
                continue
            assert closed is not None
            # Teams have made different numbers of steps and of calls: from here on they count alike.
            self._set(step=closed.step, handed_out=closed.step - 1, calls=0)
            self._membership.forget_calls()
            if closed.regroup is not None:
                self._change_team(team, closed.regroup)
            self._snapshot.take()
            return closed.is_complete
        return True

    def _change_team(self, team: Teamwork, sync: Sync) -> None:
        """All teams have met, and part in another way: this worker goes on with other members."""
        self._set(start=0)
        team.renew(sync, epoch=self.position.epoch)
        assert self.session.client is not None
        self.session.client.wait_moved()
        self._membership.move()
        self._find_group()

    def _offer_checkpoint(self) -> None:
        is_due = self._teaming.is_first and not self._gradients.has_kept
        if self._checkpointer is not None and is_due:
            self._checkpointer.offer(self.position, self._snapshot, self._membership)

    def ask_teams(
        self, what: str, values: Sequence[float] = (), payload: bytes = b""
    ) -> Heard | None:
        """What all teams bring to a call, outside of the epochs; None where this team is alone."""
        team, place = self._teaming.team, (self._loop_epoch, self._num_between)
        while team is not None and not (self._is_in_epoch or self.has_left):
            try:
                return team.add_up(
                    values, epoch=place[0], call=place[1], name=what, payload=payload
                )
            except ExchangeError as error:
                self._membership.fail(error, self.position)
                self._recover()
        return None

    # --- losing and finding each other -----------------------------------------------------------

    def _recover(self) -> None:
        if self.handout is not None:
            self._void()  # it was cut for the lost group; passes that were applied are not done again
        self._faults.reach("regroup", self.position.step)
        self._find_group()

    def _find_group(self) -> None:
        """Waits for a group with this worker in it, and goes on as its members do."""
        while True:
            if self._teaming.come_over():
                self.position = Position.at_start()
            try:
                found = self._membership.recover(self.position)
                break
            except ExchangeAborted:  # it was given another team while it waited
                continue
        if found is None:
            self._leave()
        else:
            self._settle_in(*found)

    def _leave(self) -> None:
        """From here on the loader hands out nothing, and collective calls are this worker's own."""
        if self.handout is not None:
            self._void()
        self.is_past = True
        self._departure.leave(step=self.position.step, t=now())

    def _enter(self, view: View) -> None:
        """The agreed step has come from which on there is another group."""
        self._faults.reach("regroup", self.position.step)
        truth = self._membership.enter(view, self.position)
        if truth is None:
            self._recover()
        else:
            self._settle_in(view, truth)

    def resume(self, start: Start) -> None:
        """Begins where a checkpoint was taken. The state is loaded already."""
        self.position = start.position
        self._membership.results.update(start.orders)
        self.views.restart(self.views.newest, start.position.step)
        self._random = start.random
        self._gradients.carried.load(start.gradients)

    def join(self, view: View, *, is_founder: bool) -> None:
        """Enters a running job: the others are ahead, and this worker becomes like them.

        Or a team that is founded, where nobody is ahead.
        """
        self._enter(view)
        self._restart()
        self.is_past = self.is_past and not is_founder

    def _settle_in(self, view: View, truth: Truth) -> None:
        own = self.position
        self._overtaken = truth.position[2:4] if truth.was_behind else NOWHERE
        self._gradients.reset()
        self._buffers.settle()
        self.views.restart(view, truth.position.step)
        self._must_cut = True  # what was cut ahead was cut for the old group
        self._buffers.ahead = self._snapshot.ahead if truth.was_behind else self._buffers.copies()
        if truth.was_behind:
            self.position = truth.position._replace(handed_out=own.handed_out, calls=own.calls)
        if truth.was_behind or self.handout is not None:
            self._void()  # the present batch was cut for the old group, too
        if self.session.group.rank == 0:
            self.record_view(self.views.latest)

    def _void(self) -> None:
        """The attempt at this batch counts nothing; it is handed out again."""
        self._is_void = True
        self._gradients.void()

    def _restart(self) -> None:
        """The loop goes on from the job's position, as if it had just come there."""
        self._is_void = self._teaming.is_cut_off = False
        self.is_past = self._loop_epoch <= self.position.epoch
        self._is_in_epoch = self._is_in_epoch and not self.is_past
        self._forget_attempt()
        self._arrive()
        self._snapshot.restore()

    def _forget_attempt(self) -> None:
        """All do this step anew, if nothing of it was applied, and with it the calls made in it."""
        step = self.position.step
        if self.position.phase == 0:
            self._membership.forget(lambda key: isinstance(key[0], int) and key[0] == step)

    def _arrive(self) -> None:
        """Unless it is in a past epoch, the loop goes on from where the others are."""
        if not self.is_past and self._overtaken > self.position[2:4]:
            self._set(handed_out=self._overtaken[0], calls=self._overtaken[1])

    def _set(self, **fields: int) -> None:
        self.position = self.position._replace(**fields)

    def finish(self) -> None:
        """The script is over, and so is an epoch whose last batch was fetched ahead.

        Members that were put out, and are back, copy the final state first.
        """
        if self._is_finished:
            return
        self._is_finished = True
        if self._batches.is_exhausted and self._is_in_epoch:
            self.settle()
        client, team = self.session.client, self._teaming.team
        if client is None or not client.is_elastic or team is not None or self.has_left:
            return
        with contextlib.suppress(GanglineError):
            worker, position = self.session.place.worker, self.position._replace(epoch=NO_EPOCH)
            while not self._membership.is_broken:
                group = self._membership.group
                view = client.wait_end(group, worker=worker, timeout_s=END_WAIT_S)
                if view is None or view.whole is not None:
                    return
                self._membership.enter(view, position)

    def close(self) -> None:
        """Leaves the models and optimizers as if they had never been prepared."""
        for handle in self._handles:
            handle.remove()
        self._batches.close()
        sample_state.watch(None)
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._faults.close()
        self._foreign.close()
        self._departure.close()
        self._teaming.close()
        self._gradients.close()
        if self._norms is not None:
            self._norms.close()
        if self._pacer is not None:
            self._pacer.remove()
