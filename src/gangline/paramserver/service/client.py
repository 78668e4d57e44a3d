# SPDX-License-Identifier: Apache-2.0
"""Pushes gradients to the shards and pulls parameters from them, all shards at the same time."""

from __future__ import annotations

import itertools
import secrets
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gangline.paramserver.service.coding import Encoder
from gangline.paramserver.service.lanes import Lane, Near, ask_all
from gangline.paramserver.service.lazy import UNKNOWN
from gangline.paramserver.service.link import PATIENCE_S, Asks, Connector, Link
from gangline.paramserver.service.messages import (
    Forgetting,
    Pulling,
    PullingState,
    Pushing,
    PushingEarly,
    Request,
    Resetting,
)
from gangline.paramserver.service.optimizers import options_of
from gangline.paramserver.service.pieces import PiecesMissing
from gangline.paramserver.service.pool import Pool
from gangline.paramserver.service.pulled import Pulled
from gangline.paramserver.service.pushes import Rows, gradient_of
from gangline.paramserver.service.shard import shard_indices
from gangline.paramserver.service.traffic import Traffic
from gangline.spec.errors import ExchangeAborted, MismatchError, UsageError
from gangline.spec.exchange.compression import Compression
from gangline.spec.serving import Host, Serving

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.optim import Optimizer

    from gangline.paramserver.service.messages import OnTensor, Values
    from gangline.paramserver.service.optimizers import Options
    from gangline.paramserver.service.server import ServiceHost
    from gangline.spec.serving import Entry


class ServiceClient:
    """This worker's way to all shards. One thread calls it; `abort` may come from any."""

    def __init__(
        self,
        connector: Connector,
        *,
        own: int,
        team: int,
        parameters: Sequence[Tensor],
        optimizer: Optimizer | None = None,
        host: ServiceHost | None = None,
        keeps_pulled: bool = False,
        lazy: Sequence[int] = (),
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`parameters` are all that are served, in the same order on all workers; pulls write to them.

        `optimizer` is the worker's, whose options (lr, …) go with every push. `host` holds this
        worker's own shards, if it serves. With `keeps_pulled` the last pull that was one update
        everywhere is kept, for `restore`. Of the parameters in `lazy`, pulls bring hot rows only; all
        others are to be asked for by `fetch`. A connection that takes longer than `patience_s` is lost.
        """
        self.team = team
        """For which team this worker pushes and pulls."""
        self._connector, self._own, self._host = connector, own, host
        self._parameters, self._optimizer = list(parameters), optimizer
        self._patience_s = patience_s
        self._serving: Serving | None = None
        self._encoder: Encoder | None = None
        self._indices: tuple[tuple[int, ...], ...] = ()
        self._lanes: dict[int, Lane] = {}
        # No two clients of one team count alike: another worker may lead it after this one.
        self._numbers = itertools.count(secrets.randbits(62))
        self._is_aborted = self._is_closed = False
        self._aborting = threading.Lock()
        # What was pulled last is kept while the next comes: twice the model at most.
        self._pool = Pool(2 * sum(p.numel() * p.element_size() for p in self._parameters))
        self._pulled = Pulled(self._parameters, keeps=keeps_pulled, lazy=lazy)
        self.traffic = Traffic()
        """What its connections have carried."""

    @property
    def pulled_at(self) -> tuple[int, ...]:
        """For each shard, the first update that was not in what was pulled last."""
        return self._pulled.at

    @property
    def written(self) -> dict[int, Tensor | None]:
        """The rows of each parameter that the last pull has written; None: all of them."""
        return self._pulled.written

    @property
    def kept_at(self) -> int | None:
        """The first update that is not in the pull that `restore` would send; None: there is none."""
        return self._pulled.kept.at

    # --- who is where ----------------------------------------------------------------------------

    def follow(self, serving: Serving) -> None:
        """From now on shards are asked where this serving says, and an abort is over."""
        with self._aborting:  # an abort or a close that comes from now on is about this serving
            if self._is_closed:
                raise ExchangeAborted("this client is closed")
            before = self._serving
            if before is not None and serving.number < before.number:
                return
            if before is None:
                self._indices = shard_indices(self._parameters, serving)
            if before is None or before.compression != serving.compression:
                self._encoder = self._make_encoder(serving)
            self._is_aborted, self._serving = False, serving
            over = self._open_lanes(before, serving)
        for lane in over:
            lane.close()

    def abort(self) -> None:
        """Breaks off what is under way, from any thread; every call raises until `follow`."""
        with self._aborting:
            lanes = list(self._lanes.values())
            self._is_aborted = True
            for lane in lanes:
                lane.asks.condemn()
        for lane in lanes:
            lane.asks.break_off()

    def close(self) -> None:
        """Ends all threads and connections. May be called twice."""
        with self._aborting:
            self._is_closed = True
        self.abort()
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()

    # --- what is asked ---------------------------------------------------------------------------

    def push(
        self,
        clock: int,
        gradients: Sequence[Tensor | None] | None = None,
        options: Sequence[Options] | None = None,
        entries: Sequence[Entry] = (),
        *,
        early: Mapping[int, int] | None = None,
    ) -> None:
        """Pushes a gradient per parameter, and returns when all shards and their replicas have it.

        By default these are the parameters' `.grad`, and the options those of the optimizer. A push
        that failed may be made again, with the same clock: it counts once. `early` says which
        gradients are there already, by their indices, and the numbers that `push_early` gave.
        """
        given = [p.grad for p in self._parameters] if gradients is None else list(gradients)
        if len(given) != len(self._parameters):
            raise UsageError(f"{len(given)} gradients for {len(self._parameters)} parameters")
        if options is None:
            options = () if self._optimizer is None else options_of(self._optimizer)
        if early:
            try:
                self._push(clock, given, options, entries, early)
            except PiecesMissing:
                pass  # one was refused, or went with its server
            else:
                return
        self._push(clock, given, options, entries, {})

    def push_early(
        self,
        clock: int,
        gradients: Mapping[int, Tensor],
        *,
        await_ready: Callable[[], None] | None = None,
    ) -> int:
        """Begins to push some gradients, in main memory; returns the number that `push` names them by.

        They must not change until that is over; where they have changed nevertheless, `push` must not
        count on them. `await_ready` waits until a device has written them, on another thread.
        """
        serving, number = self._number, next(self._numbers)
        lanes = dict(self._lanes)
        for shard, indices in enumerate(self._indices):
            own = {index: gradients[index].detach() for index in indices if index in gradients}
            if not own:
                continue

            def make(own: dict[int, Tensor] = own) -> PushingEarly:
                if await_ready is not None:
                    await_ready()
                coded = {index: self._coded(index, clock, one) for index, one in own.items()}
                return PushingEarly(
                    serving=serving, team=self.team, clock=clock, number=number, gradients=coded
                )

            lanes[shard].ask(make, lambda: not self._is_aborted)
        return number

    def note_own(self, index: int, rows: Tensor | None) -> None:
        """This worker has changed these rows of a parameter (None: all): the next pull brings them."""
        self._pulled.reading.note_own(index, rows)

    def spoil(self) -> None:
        """The parameters were changed in a way that nobody can see: the next pull brings everything."""
        self._pulled.spoil()

    def count_use(self, index: int, rows: Tensor) -> None:
        """A batch uses these rows of a lazy parameter: those that most batches use become hot."""
        self._pulled.lazy[index].count(rows)

    def lacks(self, index: int, rows: Tensor) -> Tensor:
        """Which of these rows of a lazy parameter may lack updates that the last pull had."""
        return self._pulled.lazy[index].stale(rows)

    def fetch(
        self, index: int, rows: Tensor, *, upto: int = 0, entries: Sequence[Entry] = ()
    ) -> None:
        """Brings these rows of a lazy parameter up to date; `rows` rise."""
        table, reading = self._pulled.lazy[index], self._pulled.reading
        if not reading.is_as_read(index):
            table.forget()
            reading.note_rows([index])
        stale = table.stale(rows)
        if not len(stale):
            return
        answer = self._bring(
            index, table.standing(stale), history=table.history, upto=upto, entries=entries
        )
        table.read(stale, answer.history, answer.applied)

    def pull(
        self,
        upto: int,
        entries: Sequence[Entry] = (),
        *,
        order: Sequence[int] = (),
        on_value: Callable[[int, Tensor], None] | None = None,
    ) -> None:
        """Writes the values after all entries before `upto` into the parameters, or later ones.

        `entries` are those that a shard may not know. What comes are the rows that differ from what
        was pulled last, where a shard knows which; else everything. Nothing is written unless all
        shards have answered.

        With `on_value` nothing is written at all, and everything comes: it is given the index and the
        whole value of each parameter as that comes, by other threads, from each shard in this `order`.
        A value may come twice; it stays as it is until the next pull.
        """
        if on_value is not None:
            self._pulled.spoil()  # who is given the values writes them, or does not
        number, say = self._number, self._pulled.ask()
        ordered = [_in_order(indices, order) for indices in self._indices]
        self.traffic.count_pull()
        self._pool.reclaim(but=self._pulled.kept.tensors())

        def told_of(shard: int) -> OnTensor | None:
            if on_value is None:
                return None
            return lambda place, value: on_value(ordered[shard][place], value)

        answers = self._ask_all(
            lambda shard, indices: Pulling(
                serving=number,
                team=self.team,
                upto=upto,
                entries=tuple(entries),
                order=ordered[shard] if order else (),
                **say(shard, indices),
            ),
            told_of,
        )
        self._pulled.take(ordered, answers, writes=on_value is None)

    def pull_rows(
        self, index: int, rows: Tensor, *, upto: int = 0, entries: Sequence[Entry] = ()
    ) -> None:
        """Writes some rows of one parameter into it, and nothing else; `rows` rise."""
        unread = torch.full(rows.shape, UNKNOWN, dtype=torch.int64)
        self._bring(index, (rows, unread), history=UNKNOWN, upto=upto, entries=entries)

    def pull_state(self, upto: int = 0, entries: Sequence[Entry] = ()) -> dict[int, dict[str, Any]]:
        """The optimizer's state of each parameter, by its index; see `optimizers.load_state`."""
        number = self._number
        answers = self._ask_all(
            lambda *_: PullingState(serving=number, upto=upto, entries=tuple(entries))
        )
        merged: dict[int, dict[str, Any]] = {}
        for answer in answers.values():
            merged.update(answer.state)
        return merged

    def forget(self, team: int, entries: Sequence[Entry] = ()) -> None:
        """A team is gone: what it pushed and is in no entry is void. `entries`: its last ones."""
        number = self._number
        self._ask_all(lambda *_: Forgetting(serving=number, team=team, entries=tuple(entries)))

    def keep(self) -> None:
        """Nothing was applied yet: the parameters as they are count as pulled, for `restore`."""
        self._pulled.begin(len(self._indices))

    def restore(self) -> None:
        """Sends what was kept to all shards, which go on from there: `Serving.source` does so."""
        serving = self._followed
        kept = self._pulled.kept
        if kept.at is None or kept.at != serving.applied:
            raise MismatchError(
                f"all shards are to go back to update {serving.applied}, and worker {self._own} has "
                f"kept {'nothing' if kept.at is None else f'update {kept.at}'}"
            )
        self._ask_all(
            lambda _, indices: Resetting(
                serving=serving.number,
                applied=serving.applied,
                values=kept.values(indices),
            )
        )

    # --- inside ----------------------------------------------------------------------------------

    @property
    def _followed(self) -> Serving:
        if self._serving is None:
            raise UsageError("nobody is known to serve yet: call follow(serving) first")
        return self._serving

    @property
    def _number(self) -> int:
        return self._followed.number

    def _make_encoder(self, serving: Serving) -> Encoder | None:
        compression = Compression.parse(serving.compression)
        return None if compression.is_none else Encoder(compression, seed=self._own)

    def _coded(self, index: int, clock: int, gradient: Any) -> Any:
        """A gradient as it travels; by the thread that asks its shard, in the order of asking."""
        encoder = self._encoder
        return gradient if encoder is None else encoder.encode(index, clock, gradient)

    def _open_lanes(self, before: Serving | None, serving: Serving) -> list[Lane]:
        """A lane to each shard that has moved; returns those that are over."""
        over = []
        for number in range(len(serving.shards)):
            peer, lane = _primary(serving, number), self._lanes.get(number)
            if lane is not None and before is not None:
                if _primary(before, number) == peer:
                    continue
                over.append(lane)
            self._lanes[number] = Lane(number, self._way_to(number, peer))
        return over

    def _way_to(self, shard: int, peer: Host) -> Asks:
        if peer.worker != self._own:
            level = f"serve.{shard}.{self._own}"
            return Link(
                self._connector,
                level,
                shard=shard,
                peer=peer,
                patience_s=self._patience_s,
                pool=self._pool,
                traffic=self.traffic,
            )
        if self._host is None:
            raise UsageError(
                f"worker {self._own} serves shard {shard} and its client was given no host"
            )
        return Near(self._host, shard)

    def _push(
        self,
        clock: int,
        given: Sequence[Tensor | None],
        options: Sequence[Options],
        entries: Sequence[Entry],
        early: Mapping[int, int],
    ) -> None:
        ready = [None if i in early else gradient_of(one) for i, one in enumerate(given)]
        number = self._number
        self._ask_all(
            lambda _, indices: (
                lambda: Pushing(
                    serving=number,
                    team=self.team,
                    clock=clock,
                    gradients=[self._coded(index, clock, ready[index]) for index in indices],
                    options=list(options),
                    entries=tuple(entries),
                    early={index: early[index] for index in indices if index in early},
                )
            )
        )

    def _bring(
        self,
        index: int,
        rows: tuple[Tensor, Tensor],
        *,
        history: int,
        upto: int,
        entries: Sequence[Entry],
    ) -> Values:
        """Writes those of some rows that differ from what was read of them."""
        number = self._number
        if not 0 <= index < len(self._parameters):
            raise UsageError(f"rows of parameter {index}, of {len(self._parameters)}")

        def request(_: int, indices: tuple[int, ...]) -> Request | None:
            if index not in indices:
                return None
            return Pulling(
                serving=number,
                team=self.team,
                upto=upto,
                entries=tuple(entries),
                is_rows_only=True,
                standing=(history, 0),
                lazy={index: rows},
            )

        self.traffic.count_fetch()
        answer: Values
        (answer,) = self._ask_all(request).values()
        self._pulled.write_rows(index, Rows(*answer.changed[index]))
        return answer

    def _ask_all(
        self,
        make: Callable[[int, tuple[int, ...]], Request | Callable[[], Request] | None],
        on_tensor: Callable[[int], OnTensor | None] = lambda shard: None,
    ) -> dict[int, Any]:
        """The answers of all shards for which there is a request; else the error to act on first."""
        lanes = dict(self._lanes)  # first: another thread may close, which empties it
        if self._is_aborted or self._is_closed:
            raise ExchangeAborted("this client was broken off, and has not followed since")
        requests = {shard: make(shard, indices) for shard, indices in enumerate(self._indices)}
        return ask_all(
            {shard: (lanes[shard], r) for shard, r in requests.items() if r is not None},
            is_wanted=lambda: not self._is_aborted,
            on_tensor=on_tensor,
        )


def _in_order(indices: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...]:
    """A shard's parameters in an order of all; without one, in its own."""
    own = set(indices)
    return tuple(index for index in order if index in own) if order else indices


def _primary(serving: Serving, shard: int) -> Host:
    worker = serving.shards[shard].primary
    return Host(worker=worker, address=serving.address_of(worker))
