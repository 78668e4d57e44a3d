# SPDX-License-Identifier: Apache-2.0
"""The user's DataLoader, rebuilt so that each worker gets its share of every global batch.

A DataLoader's batch sampler cannot be replaced, so a new loader is made from the old one's parts. A
loader with worker processes asks for several batches ahead; every batch therefore carries the
hand-out that it was cut by, from the moment it was cut until it reaches the training loop.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from torch.utils.data import BatchSampler, DataLoader

from gangline.planning.allocation.ragged import cut_shares
from gangline.spec.errors import UsageError
from gangline.worker.samples.drawn_batches import BatchedIndices, DrawnBatches, window_stop
from gangline.worker.samples.handout import OPEN, Handout, cut_window, num_steps
from gangline.worker.samples.loader_order import batching_of
from gangline.worker.samples.order import undrawn
from gangline.worker.samples.owned import OwnOrder
from gangline.worker.samples.weights import PartOf

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gangline.collectives import Group
    from gangline.spec import View
    from gangline.spec.position import Position
    from gangline.worker.samples.order import Company, Indices, Order
    from gangline.worker.samples.pulling import Pool, Pulls

WeightFunction = Callable[[Any], float]
T = TypeVar("T")


class CutPlan(Protocol):
    """What must be known of the job to cut an epoch."""

    def view_for(self, step: int) -> tuple[View, int | None]:
        """The view by which the batches of `step` are cut, and this worker's rank if it is in it."""
        ...

    @property
    def cut_from(self) -> Position:
        """From where on the order of the samples is cut."""
        ...

    def reach(self, start: int, stop: int, *, length: int) -> int:
        """How far this worker's group may go from `start` in its order of the epoch: up to `stop`."""
        ...

    def locate(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Where in the epoch's order this part of the group's own order is."""
        ...

    @property
    def company(self) -> Company: ...

    @property
    def pulls(self) -> Pulls | None:
        """Where parts are pulled: who asks for them."""
        ...

    def pull(self, pool: Pool, micro: int) -> tuple[int, int] | None:
        """This worker's part `micro` of a pool; None: there is none, or the epoch is cut off."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """Whether the epoch cannot be cut to its end: the group is lost."""
        ...

    def agree_on_order(self, exchange: Callable[[Group], T], key: tuple[str, int]) -> T: ...


class LoopPlan(Protocol):
    """Who is told how the loop goes through the epochs, and says how it goes on."""

    @property
    def is_past(self) -> bool: ...

    def begin_epoch(self) -> bool: ...

    def finish_batch(self) -> bool: ...

    def hand_out(self, handout: Handout, weight: float | Future[float], batch: Any) -> None: ...

    def total_weight(self, own: float) -> Future[float]: ...

    def end_epoch(self) -> bool: ...

    @property
    def has_uncomputed(self) -> bool: ...

    def fill(self, handout: Handout, batch: Any) -> None: ...


class Window(NamedTuple):
    """One global batch: the samples start … stop - 1 of the epoch's order."""

    epoch: int
    step: int
    start: int
    stop: int


class ShareSampler:
    """Cuts the epoch for this worker: yields lists of indices, and remembers the hand-outs."""

    def __init__(
        self,
        order: Order,
        plan: CutPlan,
        *,
        global_batch: int,
        num_micros: int,
        drop_last: bool,
        minimum: int,
    ) -> None:
        self._order = order
        self._plan = plan
        self._global_batch = global_batch
        self._num_micros = num_micros
        self._drop_last = drop_last
        self._minimum = minimum
        self.drawn: deque[Handout] = deque()
        self.is_out = False
        """Whether the last view that was cut is without this worker."""

    @property
    def steps_per_epoch(self) -> int:
        order = self._order
        if isinstance(order, DrawnBatches):
            return order.length
        if isinstance(order, OwnOrder):
            return num_steps(order.own.samples, global_batch=order.own.batch, drop_last=False)
        return num_steps(order.length, global_batch=self._global_batch, drop_last=self._drop_last)

    def __len__(self) -> int:
        return self.steps_per_epoch * self._num_micros

    def _usable_length(self, indices: Indices) -> int:
        """How many samples of the order are used."""
        if isinstance(indices, BatchedIndices):
            return len(indices)
        rest = self._order.length % self._global_batch if self._drop_last else 0
        return self._order.length - rest

    def __iter__(self) -> Iterator[list[int]]:
        """From where the loop has fetched to, to the end of the epoch."""
        epoch, company = self._plan.cut_from.epoch, self._plan.company
        indices = self._order.indices(epoch, self._plan.agree_on_order, company)
        position = self._plan.cut_from  # it is another one where the group was lost meanwhile
        self.drawn.clear()
        step, start = position.step, position.start
        while True:
            view, rank = self._plan.view_for(step)
            # Who leaves with the next epoch has been there to the end of this one, as the others were.
            self.is_out = rank is None and start < self._usable_length(indices)
            if self.is_out:
                return
            stop = window_stop(indices, start, view.global_batch)
            stop = self._plan.reach(start, stop, length=self._usable_length(indices))
            if stop - start < view.global_batch:  # here a BatchSampler comes to its sampler's end
                self._order.end()
            if stop <= start or rank is None:
                return
            cut = Window(position.epoch, step, start, stop)
            parts = self._cut if self._plan.pulls is None else self._pull
            for handout in parts(view, rank, cut):
                self.drawn.append(handout)
                yield self._indices_of(handout, indices, ghost=start)
            if self._plan.is_cut_off:
                return
            step, start = step + 1, stop

    def _pull(self, view: View, rank: int, window: Window) -> Iterator[Handout]:
        """This worker's parts of a window, as it comes to need them."""
        assert self._plan.pulls is not None
        start, stop = window.start, window.stop
        pool = self._plan.pulls.pool_of(
            view, rank, epoch=window.epoch, step=window.step, start=start, stop=stop
        )
        nothing = Handout(
            epoch=window.epoch,
            step=window.step,
            view=view.number,
            micro=0,
            num_micros=1,
            start=start,
            stop=start,
            window_stop=stop,
            share=0,
            total=stop - start,
            usual_share=view.shares[rank],
            pool=pool,
        )
        parts: tuple[tuple[int, int], ...] = ()
        while (part := self._plan.pull(pool, len(parts))) is not None:
            parts = (*parts, part)
            yield nothing._replace(
                micro=len(parts) - 1,
                num_micros=OPEN,
                start=part[0],
                stop=part[1],
                share=sum(high - low for low, high in parts),
                parts=parts,
            )
        if not (parts or self._plan.is_cut_off):  # the others have computed it all
            yield nothing

    def _cut(self, view: View, rank: int, window: Window) -> list[Handout]:
        start, stop = window.start, window.stop
        pieces = cut_window(
            stop - start,
            view.shares,
            rank=rank,
            num_micros=self._num_micros,
            minimum=self._minimum,
        )
        return [
            Handout(
                epoch=window.epoch,
                step=window.step,
                view=view.number,
                micro=micro,
                num_micros=self._num_micros,
                start=start + low,
                stop=start + high,
                window_stop=stop,
                share=pieces[-1][1] - pieces[0][0],
                total=stop - start,
                usual_share=view.shares[rank] if isinstance(self._order, DrawnBatches) else None,
            )
            for micro, (low, high) in enumerate(pieces)
        ]

    def _indices_of(self, handout: Handout, indices: Indices, *, ghost: int) -> list[int]:
        if handout.samples == 0:  # a ghost: it keeps this worker's loop in step, and counts nothing
            ((place, _),) = self._plan.locate(ghost, ghost + 1)
            return [indices[place]] * self._minimum
        found: list[int] = []
        for low, high in self._plan.locate(handout.start, handout.stop):
            found += indices[low:high]
        return found


_EMPTY_ITERATIONS = 3
"""So many iterations in a row that give nothing are those of a loop that would go on for ever."""
_IDLE_ITERATIONS = 20_000
"""The same for a loop that has computed all that it fetched: it may be one over epochs, and end."""
_MAX_FILLED = 16
"""So often such a loop is given its last batch again; it may have fetched as many ahead."""


class ShareLoader:
    """What `prepare` returns in place of the DataLoader: the same batches, this worker's share."""

    def __init__(
        self,
        inner: DataLoader[Any],
        sampler: ShareSampler,
        plan: LoopPlan,
        *,
        reduction: str,
        weight: WeightFunction | None,
    ) -> None:
        self._inner = inner
        self._sampler = sampler
        self._plan = plan
        self._reduction = reduction
        self._weight = weight
        self._iterations = 0
        self._last: tuple[Handout, Any] | None = None
        """What was handed out last, for loops that fetch ahead of an end."""
        self._num_empty = 0
        """How many iterations in a row have handed out nothing, to a loop that has fetched ahead."""
        self._num_idle = 0
        """How many have, to whatever loop."""

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[Any]:
        self._iterations += 1
        number = self._iterations
        is_spinning = self._num_empty > 0 and self._sampler.is_out
        self._num_empty = self._num_empty + 1 if is_spinning or self._plan.has_uncomputed else 0
        self._num_idle += 1
        if not self._plan.begin_epoch():
            yield from self._fill()
            return
        is_cut_anew = False
        while True:
            batches, is_cut_anew = self._begin(is_again=is_cut_anew), False
            for batch, handout, weight in self._weighted(batches):
                self._plan.hand_out(handout, weight, batch)
                self._last, self._num_empty, self._num_idle = (handout, batch), 0, 0
                yield batch
                if number != self._iterations:
                    raise UsageError(
                        "the loop goes on with an iteration over the prepared loader after it has "
                        "begun another one: every iteration is an epoch of its own, and they come one "
                        "after the other. Where a loop needs two batches at a time, fetch two from one "
                        "iteration, or prepare two loaders' data as one data set"
                    )
                if not self._plan.finish_batch():
                    is_cut_anew = True
                    break
            if (not is_cut_anew and self._plan.end_epoch()) or self._plan.is_past:
                yield from self._fill()
                return

    def _fill(self) -> Iterator[Any]:
        """What a loop gets that iterates again and again, where there are no more batches for it.

        That is the loop of a worker that leaves, or is left out, if it fetches from an endless
        generator: it must get something to come to the batch that it has not computed, or to where it
        asks whether to go on. It is given its last batch again, which counts nothing; and if it still
        goes on, its script ends.
        """
        is_due = self._sampler.is_out and self._plan.has_uncomputed
        is_empty = self._sampler.is_out and self._num_empty >= _EMPTY_ITERATIONS
        is_idle = self._num_idle >= _IDLE_ITERATIONS
        if not (is_due or is_empty or is_idle):  # who comes back goes through the epochs it missed
            return
        is_endless = is_empty and self._num_empty >= _EMPTY_ITERATIONS + _MAX_FILLED
        is_endless = is_endless or self._num_idle >= _IDLE_ITERATIONS + _MAX_FILLED
        if is_endless or self._last is None:
            sys.stderr.write(
                "gangline: there are no more batches for this worker, and its loop asks for them "
                "without end: its script ends here. Loop over gangline.epochs(…) or gangline.steps(…)\n"
            )
            raise SystemExit(0)
        handout, batch = self._last
        self._plan.fill(handout, batch)
        yield batch

    def _begin(self, *, is_again: bool) -> Iterator[Any]:
        """The inner loader draws a seed when it is iterated: once per epoch, as in a plain script."""
        if not is_again:
            return iter(self._inner)
        with undrawn(self._inner.generator):
            return iter(self._inner)

    def _weighted(
        self, batches: Iterator[Any]
    ) -> Iterator[tuple[Any, Handout, float | Future[float]]]:
        """Each batch with its hand-out and with how much its gradient counts."""
        for batch in batches:
            handout = self._sampler.drawn.popleft()
            if self._weight is not None:
                yield from self._weighted_by_function(batch, handout, batches)
            elif self._reduction == "sum":
                yield batch, handout, 1.0 if handout.samples else 0.0
            else:
                yield batch, handout, handout.samples / handout.total

    def _weighted_by_function(
        self, batch: Any, handout: Handout, batches: Iterator[Any]
    ) -> Iterator[tuple[Any, Handout, float | Future[float]]]:
        """The total is known only when all batches of the window are, so they are fetched first."""
        assert self._weight is not None
        rest = handout.num_micros - 1
        window = [(batch, handout)]
        window += [(next(batches), self._sampler.drawn.popleft()) for _ in range(rest)]
        own = [float(self._weight(b)) if h.samples else 0.0 for b, h in window]
        total = self._plan.total_weight(sum(own))
        for (piece, piece_handout), part in zip(window, own, strict=True):
            yield piece, piece_handout, PartOf(part, total)


def rebuild(loader: DataLoader[Any], batch_sampler: Any) -> DataLoader[Any]:
    """A DataLoader like `loader` that takes its batches from `batch_sampler`."""
    return DataLoader(
        loader.dataset,
        batch_sampler=batch_sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def evaluation_loader(
    loader: DataLoader[Any], indices: Sequence[int], *, shares: Sequence[int], rank: int
) -> DataLoader[Any]:
    """This worker's part of an evaluation data set: every sample is somebody's, exactly once."""
    if isinstance(indices, BatchedIndices):
        return rebuild(loader, _cut_batches(indices, shares, rank))
    start = len(indices) * sum(shares[:rank]) // sum(shares)
    stop = len(indices) * sum(shares[: rank + 1]) // sum(shares)
    size = batching_of(loader).batch_size
    return rebuild(loader, BatchSampler(indices[start:stop], size, drop_last=False))


def _cut_batches(indices: BatchedIndices, shares: Sequence[int], rank: int) -> list[list[int]]:
    """This worker's part of each batch, where it has one."""
    parts = []
    for low, high in pairwise([0, *indices.stops]):
        sizes = cut_shares(high - low, shares)
        start = low + sum(sizes[:rank])
        parts.append(indices[start : start + sizes[rank]])
    return [part for part in parts if part]
