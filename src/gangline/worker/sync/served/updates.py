# SPDX-License-Identifier: Apache-2.0
"""The updates of a team that trains by parameter servers.

The team's leader pushes the gradient to the servers, what is ready of it while the backward pass goes
on (`early.py`). It tells the coordinator, and waits for its turn; then it pulls the parameters, and
hands them to its team. Everything is said under the number of the team's clock, so that it can be said
again: a push counts once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from gangline.protocol.messages import END, LAG, Pushed, Turn, Unserved
from gangline.spec.errors import ExchangeAborted, GradientError, ServerLost
from gangline.spec.event import Decision, GradientNotFinite
from gangline.spec.serving import WORKER
from gangline.worker.session import now
from gangline.worker.sync.served.early import EarlyPushes
from gangline.worker.sync.served.hosting import Hosting
from gangline.worker.sync.served.links import ServerLinks
from gangline.worker.sync.served.scaling import unscale
from gangline.worker.sync.served.sharing import Sharing
from gangline.worker.sync.served.touched import LocalChanges, by_rows, sparse_gradients
from gangline.worker.sync.served.watch import Watch
from gangline.worker.telling.reports import tell_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from gangline.paramserver.service.client import ServiceClient
    from gangline.paramserver.service.optimizers import Options
    from gangline.spec.serving import Entry, Service, Serving
    from gangline.spec.view import View
    from gangline.worker.gradients.layout import Unit
    from gangline.worker.line.client import ControlClient
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.session import Session
    from gangline.worker.sync.served.touched import Changed
    from gangline.worker.sync.strategy import Window

T = TypeVar("T")

_LOOK_S = 0.1
_AGAIN_S = 1.0
KEPT_ENTRIES = 4096
"""So many entries are remembered, for servers that lack them."""


class Span(NamedTuple):
    """The samples that a push speaks for: from the last one's to `stop` in the team's order."""

    epoch: int
    stop: int
    skipped: int = 0
    """How many of them are not in it."""
    weight: float | None = None
    """How much they count together; None: as many as they are."""
    step: int = 0
    """Which step was made last with them."""


class ServedUpdates:
    """Makes a team's updates by way of the parameter servers; holds the shards of this worker, too."""

    def __init__(
        self, session: Session, prepared: Prepared, service: Service, view: Callable[[], View]
    ) -> None:
        """`view` is what the members of the team agreed on last."""
        assert session.client is not None
        self._session = session
        self._line: ControlClient = session.client
        self._service = service
        self._view = view
        (self._optimizer,) = prepared.optimizers
        self._parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._names = _names_of(prepared, self._parameters)
        self._links = ServerLinks(session)
        self._hosting: Hosting | None = None
        self._early = EarlyPushes(self._parameters, self._tell_late)
        self._team = -1
        """For which team it pushes; a worker that enters another one has another object for it."""
        self._epoch = -1
        self._clock = -1
        """Of the update that is computed now; -1: that is to be heard."""
        self._known = 0
        """The first entry that the team was not told of."""
        self._was_read = 0
        """The first entry that is not in the parameters, in any of the shards."""
        self._log: list[tuple[Entry, int]] = []
        """The newest entries, and the orders of servers that held when they were told."""
        self._pulled_from = -1
        """The order of servers that was pulled from last."""
        self._pushed_stop = 0
        """Up to where in the team's order everything is pushed."""
        self._state: dict[int, dict[str, Any]] | None = None
        """That of the optimizer, at the end of an epoch, where this worker needs it."""
        self._steps = 0
        self._last_step = 0
        """Where the worker updates by itself: which step of the job that was."""
        self._is_sum = prepared.is_sum
        self._weight: float | None = None
        """Where the worker updates by itself: what its steps since the last push count."""
        self._turn_s = 0.0
        """How long turns were waited for in the present update."""
        self._local = LocalChanges(self._parameters)
        """Where the worker updates by itself: what it has yet to push."""
        self._sharing = Sharing(session, self._parameters)
        watched = [] if service.update == WORKER else self._parameters
        self._watch = Watch(watched, self._names, mode=str(service))

    @property
    def parameters(self) -> Sequence[Tensor]:
        """Those that are served."""
        return self._parameters

    @property
    def is_leader(self) -> bool:
        """Whether this worker speaks with the servers for its team."""
        return self._view().members[0] == self._session.place.worker

    # --- epochs ------------------------------------------------------------------------------------

    def begin(self, epoch: int) -> None:
        """The team begins an epoch, or goes on with one: asks for a turn, and goes on meanwhile."""
        self._start()
        self._watch.check_begin()
        self._watch.note()
        self._pushed_stop = self._pushed_stop if epoch == self._epoch else 0
        self._epoch, self._clock = epoch, -1
        self._line.post.forget_turn(epoch, self._team, -1)
        self._line.post.forget_turn(epoch, self._team, END)
        self._state = None
        if self._service.update == WORKER:
            self._local.begin()
        else:
            self._optimizer.state.clear()  # it is the servers'
        if self.is_leader:
            self._ask_turn()

    def _start(self) -> None:
        """Begins to serve, if this worker holds a shard: its values are those that all begin with."""
        if self._hosting is not None:
            return
        post = self._line.post
        team = self._team = self._line.team

        def find() -> Serving | None:
            serving = post.serving
            return serving if serving is not None and team in serving.teams else None

        serving = self._line.wait_post(find, "parameter servers")
        hosting = Hosting(
            self._line,
            self._links,
            worker=self._session.place.worker,
            team=team,
            service=self._service,
            parameters=self._parameters,
            pulled=self._pulled_into(),
            optimizer=self._optimizer,
            names=self._names,
            lazy=self._lazy(),
        )
        hosting.begin(serving)
        self._hosting = hosting

    def _pulled_into(self) -> list[Tensor]:
        """The tensors that pulls are written to; they have the parameters' values now."""
        return self._parameters

    def _lazy(self) -> Sequence[int]:
        """The parameters of which pulls bring hot rows only."""
        return ()

    def flush(self, *, epoch: int, stop: int) -> None:
        """The epoch is over for this team: what it has not pushed yet is pushed."""
        self._watch.check()
        self._watch.forget()
        if self._pushed_stop >= stop:
            return
        if self._service.update != WORKER:  # its last steps were skipped
            none = [None] * len(self._parameters)
            self._push(none, Span(epoch, stop, skipped=stop - self._pushed_stop, weight=0.0))
        elif self._local.base:
            self._push_changes(epoch=epoch, stop=stop)

    def settle(self, epoch: int, *, takes_state: bool) -> None:
        """All teams have pushed what they had: takes the parameters that have come of it.

        And, if it `takes_state`, that of the optimizer. Now, while all wait for each other: later a
        server may be in the next epoch, or have ended.
        """
        self._start()
        post = self._line.post
        turn = self._line.wait_post(
            lambda: post.turn(epoch, self._team, END), "the end of the epoch"
        )
        # Everything, whatever the loop has done to the parameters: all are alike here.
        self._hosted.client.spoil()
        self._go_on(turn if self.is_leader else None, pulls=True)
        if (takes_state or turn.takes_state) and self._service.update != WORKER:
            self._state, _ = self._served(lambda client: client.pull_state())

    def hand_back(self) -> None:
        """The optimizer of this process gets the state that was taken when all settled."""
        if self._state is not None:
            load_state(self._optimizer, self._parameters, self._state)
        self._watch.note_end()

    def tell(self, epoch: int) -> None:
        """Says what was moved to and from the servers in the epoch that is over."""
        if self._hosting is not None:
            moved = self._hosting.client.traffic.take()
            tell_servers(self._session, epoch, moved, team=self._team)

    # --- updates -----------------------------------------------------------------------------------

    @property
    def takes_rows(self) -> bool:
        """Sparse gradients are pushed by their rows."""
        return True

    @property
    def _pushes_early(self) -> bool:
        """Whether gradients are pushed while the backward pass goes on."""
        return self._service.update != WORKER

    def take_unit(self, unit: Unit, *, which: int) -> None:
        """A unit of the gradient is there in this backward pass of the step; any thread may say so."""
        hosting, clock = self._hosting, self._clock
        if hosting is None or clock < 0 or not self._pushes_early or not self.is_leader:
            return

        def send(
            gradients: Mapping[int, Tensor], await_ready: Callable[[], None] | None
        ) -> int | None:
            return hosting.begin_to_ask(
                lambda client: client.push_early(clock, gradients, await_ready=await_ready)
            )

        self._early.push(unit, which=which, clock=clock, send=send)

    def _tell_late(self, reason: str) -> None:
        numbers = {"worker": float(self._session.place.worker)}
        self._session.record(Decision(t=now(), what="push_late", reason=reason, numbers=numbers))

    def update(
        self,
        step: Callable[[], None],
        *,
        rows: Mapping[int, Tensor],
        window: Window,
    ) -> float:
        """The gradient of a window is there; `rows` says what is sparse in it.

        Returns how many seconds were spent in waiting for a turn.
        """
        self._watch.check()
        try:
            return self._update(step, rows=rows, window=window)
        finally:
            self._watch.note()

    def _update(
        self,
        step: Callable[[], None],
        *,
        rows: Mapping[int, Tensor],
        window: Window,
    ) -> float:
        self._turn_s = 0.0
        if self._service.update == WORKER:
            self._step(step, rows, window)
        elif unscale(self._optimizer):
            self._push(self._gradients(rows), self._span(window), passes=window.passes)
        return self._turn_s

    def _span(self, window: Window) -> Span:
        """What is pushed with a window's gradient; a GradScaler may have skipped windows before it."""
        skipped = max(0, window.stop - self._pushed_stop - window.samples)
        return Span(
            window.epoch, window.stop, skipped=skipped, weight=window.weight, step=window.step
        )

    def _gradients(self, rows: Mapping[int, Tensor]) -> list[Tensor | None]:
        return [by_rows(p.grad, rows.get(id(p))) for p in self._parameters]

    def _step(self, step: Callable[[], None], rows: Mapping[int, Tensor], window: Window) -> None:
        """Updates here, and pushes and pulls now and then."""
        with sparse_gradients(self._optimizer, rows) as changed:
            step()
        self._note_own(changed)
        self._local.note(changed)
        self._steps += 1
        self._last_step = window.step
        if window.weight is not None:
            self._weight = (self._weight or 0.0) + window.weight
        if self._steps % self._service.push == 0:
            self._push_changes(epoch=window.epoch, stop=window.stop)
        elif self._steps % self._service.fetch == 0:
            own, written = self._local.differences(), {}
            if self.is_leader:
                written = self._fetch()
            self._local.rebase(self._share(written))
            self._local.add(own)
            self._note_own(self._local.changed)

    def _note_own(self, changed: Changed) -> None:
        """This worker has changed these rows itself, as all members of its team do."""
        self._sharing.note(changed)
        for index, rows in changed.items():
            self._hosted.client.note_own(index, rows)

    def _push_changes(self, *, epoch: int, stop: int) -> None:
        is_fetched = self._steps % self._service.fetch == 0
        changes = self._local.differences()
        span = Span(epoch, stop, weight=self._weight, step=self._last_step)
        self._weight = None
        self._local.rebase(self._push(changes, span, pulls=is_fetched))

    def _push(
        self,
        gradients: Sequence[Tensor | None],
        span: Span,
        *,
        pulls: bool = True,
        options: Sequence[Options] | None = None,
        passes: int = 0,
    ) -> Changed:
        """Pushes, waits for a turn, and pulls; returns what that has written.

        Where `passes` are given, what was pushed early in them counts.
        """
        turn = None
        if self.is_leader:
            clock, number = self._deliver(gradients, span, options=options, passes=passes)
            turn = self._say(clock, span, serving=number)
        written = self._go_on(turn, pulls=pulls)
        self._pushed_stop = span.stop
        return written

    def _deliver(
        self,
        gradients: Sequence[Tensor | None],
        span: Span,
        *,
        options: Sequence[Options] | None = None,
        passes: int = 0,
    ) -> tuple[int, int]:
        """The servers get the gradient: under which clock, and which order of servers has it."""
        clock = self._own_clock(span.epoch)
        early = self._early.counted(clock, passes=passes) if passes else None
        try:
            _, number = self._served(
                lambda client: client.push(clock, gradients, options, early=early)
            )
        except GradientError as error:
            raise self._not_finite(span, error) from error
        return clock, number

    def _not_finite(self, span: Span, error: GradientError) -> GradientError:
        """Says whose gradient the servers have refused; members of a team know their own."""
        worker = self._session.place.worker
        if self._session.group.size == 1:
            self._session.record(GradientNotFinite(t=now(), worker=worker, step=span.step))
        return GradientError(
            f"worker {worker}, epoch {span.epoch}, step {span.step}: {error}. Parameter servers refuse "
            "such values whatever non_finite says; a GradScaler skips the step before they are pushed"
        )

    def _own_clock(self, epoch: int) -> int:
        """The clock of the update that is pushed now: that of the last turn."""
        post = self._line.post
        if self._clock < 0:
            if post.turn(epoch, self._team, -1) is None:
                self._ask_turn()  # it may have been asked for by a leader that is no more
            self._clock = self._wait_turn(epoch, -1).clock
        return self._clock

    def _ask_turn(self) -> None:
        """Asks for a turn, having pushed nothing."""
        assert self._hosting is not None
        self._line.send(
            Pushed(
                clock=-1,
                epoch=self._epoch,
                start=self._pushed_stop,
                stop=self._pushed_stop,
                known=self._told_upto(),
                read=self._rewound(self._was_read),
                serving=self._hosting.number,
            )
        )

    def _say(self, clock: int, span: Span, *, serving: int) -> Turn:
        """Tells the coordinator, which orders all updates, and waits for its answer."""
        # After lost servers a clock is given again.
        self._line.post.forget_turn(self._epoch, self._team, clock)
        self._line.send(
            Pushed(
                clock=clock,
                epoch=self._epoch,
                start=self._pushed_stop,
                stop=span.stop,
                skipped=span.skipped,
                weight=span.weight,
                is_sum=self._is_sum,
                known=self._told_upto(),
                read=self._rewound(self._was_read),
                serving=serving,
            )
        )
        return self._wait_turn(self._epoch, clock)

    def _wait_turn(self, epoch: int, clock: int) -> Turn:
        began_s, post = time.perf_counter(), self._line.post
        turn = self._line.wait_post(lambda: post.turn(epoch, self._team, clock), "a turn")
        self._turn_s += time.perf_counter() - began_s
        return turn

    def _go_on(self, turn: Turn | None, *, pulls: bool) -> Changed:
        """Takes the parameters and the number of the next clock, with the whole team.

        Returns which rows of the parameters it has written.
        """
        written: Changed = {}
        if turn is not None:
            if pulls:
                written = self._read(turn)
            self._clock = turn.clock
        return self._share(written)

    @property
    def _has_log(self) -> bool:
        """Whether this worker heard of the newest entries itself: another one may have led its team."""
        return not self._known or (bool(self._log) and self._log[-1][0].number >= self._known - 1)

    def _told_upto(self) -> int:
        """From which entry on the coordinator is to tell: who leads anew hears some once more."""
        known = self._rewound(self._known)
        return known if self._has_log else max(0, known - LAG)

    def _rewound(self, number: int) -> int:
        """An entry's number, or the first void one: what this worker has read may have been lost."""
        rebuilt, applied = self._hosted.rebuilt
        return min(number, applied) if 0 <= self._pulled_from < rebuilt else number

    def _fetch(self) -> Changed:
        """Pulls what is there, without waiting for a turn."""

        def pull(client: ServiceClient) -> int:
            client.pull(*self._wanted_now())
            return min(client.pulled_at, default=0)

        self._was_read, _ = self._served(pull)
        return self._hosted.client.written

    def _read(self, turn: Turn) -> Changed:
        """Pulls what the team has a turn for; returns what that has written."""
        if not self._has_log:
            self._log = []
        self._log += [(entry, turn.serving) for entry in turn.entries]
        del self._log[:-KEPT_ENTRIES]

        def pull(client: ServiceClient) -> tuple[int, int]:
            upto, entries = self._wanted(turn.upto, serving=turn.serving)
            self._pull(client, upto, entries)
            return upto, min(client.pulled_at, default=upto)

        (self._known, self._was_read), self._pulled_from = self._served(pull)
        return self._hosted.client.written

    def _wanted_now(self) -> tuple[int, tuple[Entry, ...]]:
        """The same without a turn: as far as this worker knows, or whatever is there."""
        if not self._has_log:
            return 0, ()
        return self._wanted(self._known, serving=self._pulled_from)

    def _pull(self, client: ServiceClient, upto: int, entries: Sequence[Entry]) -> None:
        client.pull(upto, entries)

    def take_waits(self) -> tuple[float, float]:
        """How long the loop has waited for parameters, and how much of that for a turn; once."""
        return 0.0, 0.0

    def resume(self) -> None:
        """The team goes on after a loss, which may have brought parameters from another member."""
        self._watch.forget()

    def _wanted(self, upto: int, *, serving: int | None = None) -> tuple[int, tuple[Entry, ...]]:
        """Up to where to pull, and the entries that the servers may not know.

        A server that has taken another one's place may lack what others brought to that one. What was
        in the sequence when all went back is in it no more.
        """
        assert self._hosting is not None
        number, applied = self._hosting.rebuilt
        if serving is None or serving < number:
            upto = min(upto, applied) if serving is not None else upto
        self._log = [
            (entry, since)
            for entry, since in self._log
            if entry.number < applied or since >= number
        ]
        is_same = self._pulled_from == self._hosting.number
        first = self._known if is_same else 0
        return upto, tuple(entry for entry, _ in self._log if first <= entry.number < upto)

    def _share(self, written: Changed) -> Changed:
        """The leader's parameters become the team's; returns what was written in all of them."""
        if not self._sharing.is_needed:
            return written
        self._sharing.note(written)
        numbers = (self._clock, self._known, self._was_read)
        try:
            (self._clock, self._known, self._was_read), shared = self._sharing.share(numbers)
        except BaseException:
            self._hosted.client.spoil()  # the batch is done again, from what was before
            raise
        return shared

    @property
    def _hosted(self) -> Hosting:
        """Who holds the parameters: known since the first epoch began."""
        assert self._hosting is not None
        return self._hosting

    def _served(self, ask: Callable[[ServiceClient], T]) -> tuple[T, int]:
        """Asks the servers; where one is lost, again when others are in its place.

        Returns the answer, and the number of the order of servers that gave it.
        """
        hosting = self._hosting
        assert hosting is not None
        has_complained = False
        while True:
            number = hosting.number
            try:
                answer = hosting.ask(ask)
                if has_complained:
                    self._line.send(Unserved(number=number))  # it does reach them
                return answer, number
            except ServerLost as lost:
                has_complained = True
                self._line.send(Unserved(number=number, shard=lost.shard, error=str(lost)[:1000]))
            except ExchangeAborted:  # another order of servers is followed
                if hosting.is_closed:
                    raise
            again_s = time.monotonic() + _AGAIN_S
            while not hosting.wait_after(number, _LOOK_S) and time.monotonic() < again_s:
                self._line.check_team()
            self._line.withdraw(Unserved)

    # --- for members that come later ---------------------------------------------------------------

    def export(self) -> dict[str, Any]:
        """What a member of the same team needs to go on as this one does."""
        return {
            "epoch": self._epoch,
            "clock": self._clock,
            "known": self._known,
            "read": self._was_read,
            "pushed": self._pushed_stop,
            "steps": self._steps,
            "base": self._local.base,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Becomes like the member that exported this."""
        self._start()
        self._watch.forget()
        self._epoch, self._clock = state["epoch"], state["clock"]
        self._known, self._pushed_stop = state["known"], state["pushed"]
        self._was_read = state["read"]
        self._steps, self._pulled_from = state["steps"], -1
        self._local.begin(state["base"])
        self._hosted.client.spoil()

    def close(self) -> None:
        """Serves and asks no more."""
        if self._hosting is not None:
            self._hosting.close()


def load_state(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    state: dict[int, dict[str, Any]],
) -> None:
    """Gives an optimizer the state of each parameter, by its number; on the parameter's device."""
    optimizer.state.clear()
    for number, found in state.items():
        parameter = parameters[number]
        optimizer.state[parameter] = {
            name: value.to(parameter.device)
            if isinstance(value, torch.Tensor) and value.dim() > 0
            else value
            for name, value in found.items()
        }


def _names_of(prepared: Prepared, parameters: Sequence[Tensor]) -> list[str]:
    names = {id(p): name for model in prepared.models for name, p in model.named_parameters()}
    return [names.get(id(p), f"parameter {number}") for number, p in enumerate(parameters)]


def copies_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The values as they are now."""
    return [p.detach().clone() for p in parameters]
