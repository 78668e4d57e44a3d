# SPDX-License-Identifier: Apache-2.0
"""Exchanges the gradients while the backward pass runs.

A hook on every parameter sees to it that its fresh gradient, weighted by this worker's part of the
batch, comes into the parameter's place in a flat unit. A unit whose parameters are all ready goes to
the communication thread, in canonical order. When the outermost backward pass returns, what is left
is sent and waited for, so that clipping and `step()` see the gradient of the whole global batch.

Several backward passes before a step (two losses, a GAN) are exchanged one by one. What an earlier
pass left in a unit is already the same everywhere, so only rank 0 adds it to the next sum.

Which units a pass exchanges must be known to all workers beforehand. The first time it is all of
them; afterwards it is what the same pass of the step before changed on any worker. What a worker
changes beyond that is agreed in the header and exchanged after it: late, but never wrong.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from gangline.collectives import all_reduce_unit, bring
from gangline.spec.errors import (
    ExchangeError,
    ExchangeMismatch,
    MismatchError,
    UnsupportedError,
)
from gangline.worker.checks.gradient_checks import (
    check_gradient,
    drifted_apart,
    fired_twice,
    first_apart,
    frozen_apart,
    place_of,
    unseen,
)
from gangline.worker.checks.scrutiny import UNSAID
from gangline.worker.gradients import tables
from gangline.worker.gradients.agreement import (
    Agreed,
    PassSection,
    Statement,
    decode,
    encode,
)
from gangline.worker.gradients.buffers import Buffers, checksum
from gangline.worker.gradients.carried import CarriedGradients
from gangline.worker.gradients.layout import Content, Layout, Slot, Unit
from gangline.worker.gradients.sizes import PassSize
from gangline.worker.gradients.streams import SideStreams, is_queued, mark, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gangline.collectives import Group, Header
    from gangline.worker.gradients.communicator import Communicator
    from gangline.worker.gradients.spans import UnitSpans
    from gangline.worker.gradients.streams import Mark


def resolved(weight: float | Future[float]) -> float:
    """A batch's weight, when it is known; 0 where the total could not be had.

    Then the exchange of the units fails, too, and voids the attempt.
    """
    if not isinstance(weight, Future):
        return weight
    try:
        return weight.result()
    except ExchangeError:
        return 0.0


class _Left(NamedTuple):
    """What a local pass has left."""

    last: Unit | None
    """The unit that is sent with the header."""
    dirty: list[bool]
    """By unit: whether it holds something that was not exchanged yet."""
    has_gradient: bytes
    changed_buffers: bytes
    is_trainable: bytes
    """By parameter, by buffer, by parameter."""


class Gradients:
    """The gradient of the prepared models: hooks, units and their exchange."""

    def __init__(
        self,
        layout: Layout,
        buffers: Buffers,
        communicator: Communicator,
        *,
        is_eager: bool = True,
    ) -> None:
        """Eager: units are sent while the backward pass goes on; else when it is over."""
        self._is_eager = is_eager
        self._layout = layout
        self._units = layout.units
        self._slots = layout.slots
        self.carried = CarriedGradients(layout.slots)
        self._buffers = buffers
        self._communicator = communicator
        self._weight = 0.0
        self._part = 1.0
        self._weight_future: Future[float] | None = None
        self._is_window_open = False
        self._plans: dict[int, list[int]] = {}
        self._phase = 0
        self._pending: list[int] = []
        self._plan: list[int] = []
        self._num_sent = 0
        self._exchanges: list[Future[None]] = []
        self._coming: deque[tuple[torch.Tensor, Mark]] = deque()
        """What is queued to be exchanged, and when its device has computed it."""
        self._squares: list[torch.Tensor] = []
        self._left = _Left(None, [], b"", b"", b"")
        self._is_mixed = False
        self._in_backward = False
        self._is_update = False
        self._is_paused = False
        self.has_kept = False
        """Whether a pass inside of `no_sync` has left something that was not exchanged since."""
        self._is_void = False
        self._num_done = 0
        self._waited_s: float | None = None
        self._devices = {unit.device for unit in self._units}
        self._streams = SideStreams()
        self._lock = threading.Lock()  # autograd has a thread per device, each with its hooks
        self._handles = self._register_hooks()
        self._next_hook = -1
        self.takes_rows: Callable[[], bool] = lambda: False
        """Whether sparse gradients are taken: where they travel by their rows."""
        self.on_unit: Callable[[Unit], None] = lambda unit: None
        """Is told of each unit whose sum over all members is there, by whichever thread has it."""
        self.spans: UnitSpans | None = None
        """Where it is noted when units are exchanged; None: nobody wants to know of this step."""
        self.unread_size: PassSize | None = None
        """The size of the pass that was exchanged last, where nobody has waited for it."""

    # --- one batch -------------------------------------------------------------------------------

    def start(
        self,
        weight: float | Future[float],
        *,
        is_update: bool,
        is_first: bool = True,
        part: float = 1.0,
        num_done: int = 0,
    ) -> None:
        """A new batch: its gradients count `weight`; they are exchanged if `is_update`.

        `is_first` says that it is the first part of its window.
        `part` is this worker's fraction of the window's samples, by which statistics are averaged.
        The first `num_done` passes were exchanged and applied before somebody was lost: they are
        run again for the sake of the loop, and their gradients are dropped.
        """
        self._part = part
        self._num_done = num_done
        if isinstance(weight, Future):
            self._weight_future = weight
        else:
            self._weight, self._weight_future = weight, None
        self._is_update = is_update
        self._is_void = False
        self._phase = 0
        self.carried.begin_batch(is_first=is_first, is_done=num_done > 0)

    def close_window(self, *, part: float) -> None:
        """The present batch is the last part of its window: what has come in is to be exchanged.

        `part` is this worker's fraction of the window's samples.
        """
        self._is_update, self._part = True, part

    def await_devices(self) -> None:
        """Waits until what was queued is computed, unless nobody needs to know when."""
        if not self.runs_ahead:
            started_s = time.perf_counter()
            wait_for(self._devices)
            if any(map(is_queued, self._devices)):
                self._waited_s = (self._waited_s or 0.0) + time.perf_counter() - started_s

    def take_wait(self) -> float | None:
        """How long devices were waited for since the last call; None: there were none to wait for."""
        waited_s, self._waited_s = self._waited_s, None
        return waited_s

    def stop(self) -> None:
        """The epoch is over: no batch is there that a gradient could count for."""
        self._is_update = False

    @property
    def has_fired(self) -> bool:
        """Whether the present pass has given a parameter of ours a gradient."""
        return any(slot.fired for slot in self._slots)

    @property
    def num_exchanged(self) -> int:
        """How many passes of the present batch have been exchanged."""
        return self._phase

    @property
    def is_replaying(self) -> bool:
        """Whether what the loop does now was done before: its `step()` must change nothing."""
        return self._is_void or (self._num_done > 0 and self._phase <= self._num_done)

    @property
    def weight(self) -> float:
        """How much the present batch's gradients count; waits where the total is on its way."""
        return self._resolved_weight()

    @property
    def runs_ahead(self) -> bool:
        """Whether this thread waits for nothing: it is alone, and its device works through a queue.

        Nobody needs to know when the device is done, so it is given the next step meanwhile.
        """
        is_one = len(self._devices) == 1 and all(map(is_queued, self._devices))
        return is_one and self._communicator.group.size == 1

    def timed_mark(self) -> Mark:
        """Where the device's queue is now; None where this thread waits for it, and has the time."""
        return mark(next(iter(self._devices)), is_timed=True) if self.runs_ahead else None

    @property
    def in_backward(self) -> bool:
        """Whether a backward pass is under way."""
        return self._in_backward

    def void(self) -> None:
        """The attempt at this batch failed: its gradients are zero, and no more are exchanged.

        Zero, not None: a GradScaler wants to see gradients. `step()` is kept from using them.
        """
        self._is_void = True
        self.carried.void()
        self._clear()

    def leave_window(self) -> None:
        """The loop left an accumulation window before its end: what came in counts nothing."""
        self._is_window_open = False
        self.carried.void()
        for slot in self._slots:
            if slot.content is Content.LOCAL:
                slot.content = Content.EMPTY
                slot.parameter.grad = None

    def reset(self) -> None:
        """A new group: nothing that was agreed in the old one holds."""
        self._plans.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Backward passes inside add up locally, for people who count their own windows."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @property
    def _is_sending(self) -> bool:
        is_done = self._is_void or self._phase < self._num_done
        return self._is_update and not self._is_paused and not is_done

    # --- one backward pass -----------------------------------------------------------------------

    def begin(self) -> None:
        """A backward pass begins: autograd shall write fresh gradients, not add to ours."""
        if RemovableHandle.next_id != self._next_hook:  # a hook was put on something since
            self._go_last()
        self.carried.begin_pass()
        for unit in self._units:
            for slot in unit.slots:
                slot.fired = False
                if slot.parameter.grad is not None or slot.content is not Content.EMPTY:
                    self._set_aside(unit, slot)
        self._pending = [
            sum(slot.parameter.requires_grad for slot in unit.slots) for unit in self._units
        ]
        everything = [index for index, pending in enumerate(self._pending) if pending]
        self._plan = self._plans.get(self._phase, everything)
        self._num_sent = 0
        self._exchanges = []
        self._coming = deque()
        self._squares = []
        if self._is_mixed:  # until what was added to has been exchanged
            self._is_mixed = any(slot.content is Content.LOCAL for slot in self._slots)
        self._in_backward = True

    def finish_local(self, *, is_forced: bool = False) -> bool:
        """The local pass is over: sends all units but the last, and says whether to `exchange`.

        A pass that touched none of our models is nobody's business, unless `is_forced`.
        """
        self._in_backward = False
        if not is_forced and not self.has_fired:
            self._restore()
            return False
        self._collect_rest()
        if self._is_void:
            self.void()
            return False
        if self._is_update and not self._is_paused and self._phase < self._num_done:
            self._drop()
            return False
        if not is_forced and not self._is_sending:
            self._keep()
            return False
        self._send_up_to(len(self._plan) - 1)
        self._left = self._look()
        self.await_devices()  # they compute later than this thread; then the time is taken
        return True

    def _look(self) -> _Left:
        """What the pass has left, while devices are still at it; completes what is to be sent."""
        dirty = [any(slot.content is Content.LOCAL for slot in unit.slots) for unit in self._units]
        last = self._units[self._plan[-1]] if self._plan else None
        for unit in self._units:
            if unit is last or (dirty[unit.index] and unit.index not in self._plan):
                self._complete(unit)
        return _Left(
            last=last,
            dirty=dirty,
            has_gradient=bytes(slot.content is not Content.EMPTY for slot in self._slots),
            changed_buffers=self._changed_buffers(),
            is_trainable=bytes(slot.parameter.requires_grad for slot in self._slots),
        )

    def exchange(
        self, state: Callable[[PassSection], Statement], *, share: int | None = None
    ) -> Agreed:
        """Sends the last unit with the header, and waits until all sums are there.

        `state` puts what is said here of the pass together with what others have to say. Where nobody
        knows the others' shares, all say theirs: `share`.
        """
        left = self._left
        made = PassSection(
            phase=self._phase,
            gradients=checksum(left.has_gradient),
            buffers=checksum(left.changed_buffers),
            trainable=checksum(left.is_trainable),
        )
        said = state(made)
        # Who would be put out for it must be known before the gradient is used.
        is_late = self.runs_ahead and not said.checks.evicts
        self.unread_size = self._size() if is_late else None
        shares = () if share is None else self._by_rank(share, other=0)
        header = encode(said, left.dirty, self._sizes(is_late=is_late), shares)
        try:
            self._send(left.last, header)
            self._await_planned()
            members = self._communicator.group.size
            agreed = decode(header, num_units=len(left.dirty), num_members=members)
            exchanged, flags = self._settle(agreed, left)
        finally:
            self._streams.hand_over()
        self._publish(exchanged, flags)
        self._plans[self._phase] = [i for i, is_sent in enumerate(agreed.units) if is_sent]
        self._phase += 1
        return agreed

    def _settle(self, agreed: Agreed, left: _Left) -> tuple[list[int], bytes]:
        """Exchanges what was agreed on beyond the plan.

        Returns all units that were exchanged, and who has a gradient anywhere.
        """
        if agreed.differ(place_of):
            raise MismatchError(drifted_apart(agreed))
        if agreed.differ(lambda said: said.made.trainable):
            raise MismatchError(frozen_apart(self._find_frozen_apart(left.is_trainable)))
        late = [i for i, is_sent in enumerate(agreed.units) if is_sent and i not in self._plan]
        for index in late:
            if not left.dirty[index]:
                self._complete(self._units[index])
            self._send(self._units[index])
        flags = self._agree(
            left.has_gradient, differ=agreed.differ(lambda said: said.made.gradients)
        )
        self._exchange_buffers(
            left.changed_buffers, differ=agreed.differ(lambda said: said.made.buffers)
        )
        for future in self._exchanges:
            future.result()
        return sorted({*self._plan, *late}), flags

    def _await_planned(self) -> None:
        """Waits for the units that all members know that they exchange."""
        try:
            for future in self._exchanges:
                future.result()
        except ExchangeMismatch as error:
            if self._phase in self._plans:
                raise
            raise first_apart(error) from error

    def _find_frozen_apart(self, is_trainable: bytes) -> list[str]:
        """The parameters that are frozen on some members only, of which there are some."""
        frozen = bytes(not flag for flag in is_trainable)
        somewhere = self._agree(is_trainable, differ=True), self._agree(frozen, differ=True)
        flags = zip(self._slots, *somewhere, strict=True)
        return [slot.name for slot, trained, is_frozen in flags if trained and is_frozen]

    def fail(self) -> None:
        """The backward pass raised: leave the gradients as they are and forget the pass."""
        self._in_backward = False
        for future in self._exchanges:  # a unit that is under way must not be written to
            future.exception()
        self._streams.hand_over()
        self._collect_rest()
        for index in self._plan[: self._num_sent]:
            for slot in self._units[index].slots:
                if slot.content is Content.LOCAL:
                    slot.content = Content.GLOBAL
        self._restore()

    def hide(self) -> list[torch.Tensor | None]:
        """Takes all gradients away, so that a `step()` changes nothing; returns them."""
        hidden = [slot.parameter.grad for slot in self._slots]
        for slot in self._slots:
            slot.parameter.grad = None
        return hidden

    def show(self, hidden: list[torch.Tensor | None]) -> None:
        """Puts back what `hide` took away."""
        for slot, grad in zip(self._slots, hidden, strict=True):
            slot.parameter.grad = grad

    def close(self) -> None:
        """Removes the hooks. Gradients stay where they are."""
        for handle in self._handles:
            handle.remove()

    # --- hooks -----------------------------------------------------------------------------------

    def _register_hooks(self) -> list[RemovableHandle]:
        handles = []
        for unit in self._units:
            for slot in unit.slots:
                parameter = slot.parameter
                frozen = not parameter.requires_grad
                if frozen:  # torch lets only parameters that require a gradient have this hook
                    parameter.requires_grad_(True)
                hook = partial(self._on_gradient, unit, slot)
                handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                handles.append(handle)
                if frozen:
                    parameter.requires_grad_(False)
        return handles

    def _go_last(self) -> None:
        """Other hooks see and change a parameter's own gradient, before it is moved and sent."""
        self._next_hook = RemovableHandle.next_id
        for slot, handle in zip(self._slots, self._handles, strict=True):
            hooks = slot.parameter._post_accumulate_grad_hooks or {}
            if handle.id in hooks and next(reversed(hooks)) != handle.id:
                hooks[handle.id] = hooks.pop(handle.id)

    def _on_gradient(self, unit: Unit, slot: Slot, parameter: torch.Tensor) -> None:
        if not self._in_backward:
            if self._communicator.group.size > 1:
                raise UnsupportedError(unseen(slot))
            return
        if parameter.grad is None:
            return
        if slot.fired:
            raise UnsupportedError(fired_twice(slot))
        slot.fired = True
        if slot.is_large:
            self._collect(unit, [slot])
        with self._lock:
            self._pending[unit.index] -= 1
            if self._pending[unit.index] == 0:
                self._collect(unit, unit.small_slots)
                if self._is_sending and self._is_eager:
                    self._send_ready()

    def _collect(self, unit: Unit, slots: list[Slot]) -> None:
        """Moves fresh gradients, weighted, into their places.

        Large ones at once, while they are in the cache; the small ones of a unit together, because
        each call costs more than what it moves.
        """
        fresh = [slot for slot in slots if slot.fired and slot.parameter.grad is not slot.view]
        if not fresh:
            return
        unit.allocate()
        for slot in fresh:
            check_gradient(slot, takes_rows=self._takes_rows_of(slot))
        weight = self._resolved_weight()
        whole = self._collect_rows(fresh, weight)
        if weight == 0:  # a ghost's gradient may be anything, and 0 * inf is not 0
            for slot in whole:
                if not self._is_kept(slot):
                    slot.place.zero_()
        else:
            self._add([slot for slot in whole if self._is_kept(slot)], weight)
            self._put([slot for slot in whole if not self._is_kept(slot)], weight)
        for slot in fresh:
            slot.content = Content.LOCAL
            slot.parameter.grad = slot.view

    def _takes_rows_of(self, slot: Slot) -> bool:
        """Whether its gradient may be sparse; in a group all must know beforehand that it may be."""
        return self.takes_rows() and (slot.is_table or self._communicator.group.size == 1)

    def _collect_rows(self, fresh: list[Slot], weight: float) -> list[Slot]:
        """Moves those of the fresh gradients that are sparse; returns the others."""
        whole = []
        for slot in fresh:
            if not tables.is_by_rows(slot.gradient):
                slot.rows = None
                if slot.gradient.layout != torch.strided:
                    slot.parameter.grad = slot.gradient.to_dense()
                whole.append(slot)
                continue
            is_kept = self._is_kept(slot)
            self._is_mixed |= is_kept and slot.content is Content.GLOBAL
            tables.collect(slot, weight, is_kept=is_kept)
        return whole

    def rows(self) -> dict[int, torch.Tensor]:
        """Which rows of sparse gradients count, by the ids of their parameters."""
        return {
            id(slot.parameter): slot.rows
            for slot in self._slots
            if slot.rows is not None and slot.parameter.grad is slot.view
        }

    def _collect_rest(self) -> None:
        """Some parameters of a unit got no gradient in this pass: the others' are still to be moved."""
        for unit, pending in zip(self._units, self._pending, strict=True):
            if pending:
                self._collect(unit, unit.small_slots)

    def _is_kept(self, slot: Slot) -> bool:
        """Whether what lies in the place is part of the sum to come."""
        return slot.content is Content.LOCAL or (
            slot.content is Content.GLOBAL and self._communicator.group.rank == 0
        )

    def _add(self, slots: list[Slot], weight: float) -> None:
        for slot in slots:
            self._is_mixed |= slot.content is Content.GLOBAL
            slot.place.add_(slot.gradient, alpha=weight)

    def _put(self, slots: list[Slot], weight: float) -> None:
        if len(slots) == 1:
            torch.mul(slots[0].gradient, weight, out=slots[0].place)
        elif slots:
            places = [slot.place for slot in slots]
            torch._foreach_copy_(places, [slot.gradient for slot in slots])
            torch._foreach_mul_(places, weight)

    def _resolved_weight(self) -> float:
        future = self._weight_future  # once: another device's thread may resolve it meanwhile
        if future is not None:
            self._weight, self._weight_future = resolved(future), None
        return self._weight

    # --- sending ---------------------------------------------------------------------------------

    def _send_ready(self) -> None:
        """Sends the next units of the plan that are ready; the last waits for the header."""
        ready = self._num_sent
        while ready < len(self._plan) - 1 and self._pending[self._plan[ready]] == 0:
            ready += 1
        self._send_up_to(ready)

    def _send_up_to(self, end: int) -> None:
        while self._num_sent < end:
            unit = self._units[self._plan[self._num_sent]]
            self._complete(unit)
            self._send(unit)
            self._num_sent += 1

    def _complete(self, unit: Unit) -> None:
        """What does not count in the sum to come becomes zero; the rest is looked at."""
        flat = unit.allocate()
        rank = self._communicator.group.rank
        for slot in unit.slots:
            if slot.content is Content.EMPTY or (slot.content is Content.GLOBAL and rank != 0):
                if slot.is_table:
                    tables.clear(slot)
                else:
                    slot.place.zero_()
            elif slot.content is Content.GLOBAL:
                self._is_mixed = True
        if unit.table is not None:
            self._squares.append(tables.square(unit.table))
            return
        # One pass over memory that is still in the cache; half precision would overflow.
        if flat.itemsize < 4:
            self._squares.append(torch.linalg.vector_norm(flat, dtype=torch.float32).square_())
        else:
            self._squares.append(torch.dot(flat, flat))

    @property
    def size(self) -> int:
        """How large this worker's own part of the gradient is; waits for it."""
        return self._size().read()

    def _size(self) -> PassSize:
        return PassSize(self._squares, part=self._part, is_mixed=self._is_mixed)

    def _sizes(self, *, is_late: bool) -> list[int]:
        return self._by_rank(UNSAID if is_late else self.size, other=UNSAID)

    def _by_rank(self, own: int, *, other: int) -> list[int]:
        group = self._communicator.group
        return [own if rank == group.rank else other for rank in range(group.size)]

    def _send(self, unit: Unit | None, header: Header | None = None) -> None:
        """Queues the exchange of a unit (None: of a header alone)."""
        if self._communicator.group.size == 1:
            if unit is not None:
                self.on_unit(unit)
            unit = None  # what this worker has is the sum
            if header is None:
                return
        flat = torch.zeros(0) if unit is None else unit.allocate()
        ready, spans = mark(flat.device), self.spans
        noted: AbstractContextManager[None] = nullcontext()
        if spans is not None and unit is not None:
            noted = spans.of(unit.index, ready_s=spans.now_s())

        table = unit.table if unit is not None and self.takes_rows() else None
        if unit is not None and table is None:
            for slot in unit.slots:
                slot.rows = None  # the sum may be anything
        coming = self._coming
        coming.append((flat, ready if table is None else None))

        def exchange(group: Group) -> None:
            for index in range(min(2, len(coming))):  # the next one comes while this is exchanged
                one, computed = coming[index]
                if computed is not None:
                    bring(group, one, computed)
            coming.popleft()
            with noted, self._streams.after(ready, flat.device):
                if unit is None:
                    group.all_reduce(flat, header)
                elif table is not None:
                    tables.sum_rows(group, table, header)
                else:
                    all_reduce_unit(group, flat, header, unit=unit.index)
                    self.on_unit(unit)

        send = self._communicator.submit if header is None else self._communicator.finish
        self._exchanges.append(send(exchange))

    def _agree(self, flags: bytes, *, differ: bool) -> bytes:
        """Or-s flags over all workers; costs an exchange only where they differ."""
        if not differ:
            return flags
        votes = np.frombuffer(flags, dtype=np.uint8).astype(np.int64)
        self._communicator.call(lambda group: group.all_reduce(torch.zeros(0), votes))
        return bytes(votes.astype(np.uint8))

    def _changed_buffers(self) -> bytes:
        """One byte per buffer and table: 1 where it is to be exchanged."""
        if self._communicator.group.size == 1:
            self._buffers.settle_alone()
            return b""
        return self._buffers.changed()

    def _exchange_buffers(self, changed: bytes, *, differ: bool) -> None:
        chosen = self._agree(changed, differ=differ)
        if any(chosen):
            flat = self._buffers.collect(chosen, self._part)
            self._communicator.call(lambda group: group.all_reduce(flat))
            self._buffers.restore(chosen, flat)
            self._buffers.settle()

    # --- what the parameters show ----------------------------------------------------------------

    def _set_aside(self, unit: Unit, slot: Slot) -> None:
        """Notes what a parameter's gradient holds before the pass, and takes it off the parameter."""
        gradient = slot.parameter.grad
        if gradient is None:
            if not (self._is_window_open and slot.content is Content.LOCAL):
                slot.content = Content.EMPTY  # the user called zero_grad
            return
        if gradient is not slot.view:  # the user put a gradient there
            unit.allocate()
            assert slot.view is not None
            slot.view.copy_(gradient.detach())
            slot.content, slot.rows = Content.GLOBAL, None
        elif slot.content is Content.EMPTY:
            slot.content = Content.GLOBAL
        slot.parameter.grad = None

    def _drop(self) -> None:
        """This pass was exchanged and applied before: its gradients must not count again."""
        self._phase += 1
        self._buffers.catch_up()
        self._clear()
        if self._phase == self._num_done:
            self.carried.put_back()

    def _clear(self) -> None:
        """All gradients are zero, and there to be seen."""
        self._is_window_open = self.has_kept = False
        for unit in self._units:
            if unit.flat is not None:
                unit.flat.zero_()
        for slot in self._slots:
            slot.parameter.grad = slot.view
            slot.content = Content.EMPTY

    def _keep(self) -> None:
        """The window goes on. In a window of ours, what came in is out of `zero_grad`'s reach."""
        self._is_window_open = not self._is_paused
        self.has_kept = self.has_kept or self._is_paused
        for slot in self._slots:
            is_hidden = slot.content is Content.LOCAL and self._is_window_open
            if slot.content is not Content.EMPTY and not is_hidden:
                slot.parameter.grad = slot.view
            else:
                slot.parameter.grad = None

    def _restore(self) -> None:
        for slot in self._slots:
            if slot.content is not Content.EMPTY and not self._is_window_open:
                slot.parameter.grad = slot.view

    def _publish(self, exchanged: list[int], has_gradient: bytes) -> None:
        """What was exchanged becomes the parameters' gradient; what is None everywhere stays None."""
        done = set(exchanged)
        self._is_window_open = self.has_kept = False
        position = 0
        for unit in self._units:
            for slot in unit.slots:
                if unit.index in done:
                    slot.content = Content.GLOBAL if has_gradient[position] else Content.EMPTY
                slot.parameter.grad = None if slot.content is Content.EMPTY else slot.view
                position += 1
