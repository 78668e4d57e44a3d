# SPDX-License-Identifier: Apache-2.0
"""Which of the batches that the loop has fetched is it computing now?

A plain loop computes the batch that it fetched last. Others fetch ahead: nanoGPT gets the next batch
between forward and backward, a CUDA prefetcher is always one ahead, trainers fetch all batches of an
accumulation window first. A gradient must be weighted by the hand-out of the batch that it was
computed from, however far ahead the loop fetches. Three things tell which one that is:

1. Autograd numbers its nodes as it makes them. A loss with a smaller number than a fetch was
   computed before that fetch, so it is of an earlier batch.
2. The tensors that are given to a prepared model may be those of a batch, or copies of them. A call
   without gradients says nothing, as no loss can be of it.
3. Otherwise batches are computed in the order in which they were fetched. A batch is over when the
   loop fetches another one after its step.

The third is a guess where the loop skips batches, so it is said, once, with what to do. What the loop
skipped and computes later is refused, as far as the second tells: its step is over.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gangline.spec.errors import UsageError
from gangline.worker.samples import model_calls
from gangline.worker.samples.batch_tensors import is_copied, is_part, tensors_in
from gangline.worker.samples.model_calls import ModelCalls
from gangline.worker.samples.pass_graph import is_computed_since, next_number, number_of, spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle

    from gangline.worker.samples.handout import Handout

_MAX_RECOGNISED = 8
"""Of how many batches the tensors are kept, so that they can be recognised."""
_OVER = (
    "this loss was computed before the present batch was fetched, and the batch it is of is over: "
    "call backward() on a loss before the optimizer's step, and before the loop fetches the batch "
    "after the next one"
)
_SEVERAL = (
    "one backward() is called for the losses of several batches, which may count differently: call "
    "backward() for each batch (inside gangline.no_sync() to exchange once), or let "
    "prepare(…, accumulate=k) hand out the global batch in k parts"
)


@dataclass(slots=True, eq=False)
class Fetched:
    """A batch that the loop has got and not finished."""

    handout: Handout
    weight: float | Future[float]
    made: int
    """The number that autograd would have given to a node when the batch was fetched."""
    thread: int
    number: int = 0
    """How many were fetched before it."""
    tensors: list[Tensor] = field(default_factory=list)
    calls: int = 0
    """Calls of the prepared models with its tensors, from which a backward pass may come."""
    passes: int = 0
    """Backward passes that gave a gradient to the prepared models."""
    steps: int = 0
    is_left: bool = False
    """Whether the loop fetched again since the last of these passes."""
    over_at: int | None = None
    """Autograd's number when the loop was done with it."""
    is_void: bool = False
    """Whether it was cut for a group that is no more: it is computed, and counts nothing."""

    @property
    def is_worked(self) -> bool:
        """Whether the loop has begun to use the batch."""
        return self.passes > 0 or self.steps > 0

    @property
    def is_left_out(self) -> bool:
        """Whether the loop went on to a later batch without having used this one."""
        return self.over_at is not None and not self.is_worked

    @property
    def name(self) -> str:
        """For people."""
        handout = self.handout
        part = f", part {handout.micro + 1}" if handout.num_micros > 1 else ""
        return f"the batch of step {handout.step}{part}"


class FetchedBatches:
    """What the loop has fetched and not finished: the present batch, and those ahead of it."""

    def __init__(self, models: Sequence[nn.Module], *, needs_step: bool) -> None:
        self.present: Fetched | None = None
        """The batch that the loop computes, as far as is known."""
        self.ahead: deque[Fetched] = deque()
        self.is_exhausted = False
        """Whether the epoch has no more batches to fetch."""
        self.is_in_window = False
        """Whether a part of an accumulation window was used, and the window is not complete."""
        self._models = models
        self._needs_step = needs_step
        self._recognised: Fetched | None = None
        self._evaluated: Fetched | None = None
        """The batch that a model is called with right now, where the call is without gradients."""
        self._left_out: deque[Fetched] = deque()
        """Of the last batches those that the loop went past without using them."""
        self._last_worked: Fetched | None = None
        self._num_fetched = 0
        self._calls = ModelCalls()
        self._lag = 0
        """How many batches this loop is known to fetch ahead."""
        self._passes = self._steps = 1
        """How often the batch before was used: the next one is used alike."""
        self._handles: list[RemovableHandle] = []

    @property
    def is_empty(self) -> bool:
        """Whether the loop has finished all that it fetched."""
        return self.present is None and not self.ahead

    @property
    def newest(self) -> Fetched | None:
        """The batch that was fetched last."""
        return self.ahead[-1] if self.ahead else self.present

    @property
    def holds_void(self) -> bool:
        """Whether all that a loop which fetches ahead has yet to compute counts nothing."""
        held = [*self.ahead] if self.present is None else [self.present, *self.ahead]
        is_due = any(self._lag > 0 or one.calls > 0 for one in held if not one.is_worked)
        return is_due and all(batch.is_void for batch in held)

    @property
    def shown(self) -> Fetched | None:
        """The batch that the loop is at, where it asks before it has begun to compute it.

        A loop that was never seen to compute a batch later than it fetched it is at the newest.
        """
        present = self.present
        if present is None or self._recognised is not None:
            return self._recognised
        if present.is_worked:
            return self.ahead[0] if present.is_left else present
        return present if self._lag > 0 else self.newest

    @property
    def forwarded(self) -> Fetched | None:
        """The batch that a forward pass is of."""
        present = self.present
        if self._evaluated is not None:
            return self._evaluated
        if present is None or self._recognised is not None or not self.ahead:
            return self._recognised or present
        if present.is_worked:
            return self.ahead[0] if present.is_left or self.is_complete else present
        return present if self._lag > 0 else self.newest

    @property
    def is_over(self) -> bool:
        """Whether the loop, which comes for another batch, is done with the present one."""
        present = self.present
        if present is None:
            return False
        if self._needs_step and not present.is_void:
            return present.steps > 0
        return present.is_worked

    @property
    def is_complete(self) -> bool:
        """Whether the present batch was used as often as the one before it."""
        present = self.present
        if present is None or present.passes < self._passes:
            return False
        is_step_due = self._needs_step and present.handout.is_update
        return present.steps >= self._steps or not is_step_due

    # --- what the loop does ----------------------------------------------------------------------

    def add(
        self,
        handout: Handout,
        weight: float | Future[float],
        batch: Any,
        *,
        is_void: bool = False,
    ) -> None:
        """The loop fetches a batch."""
        if self.present is not None:
            self.present.is_left = self.present.is_left or self.present.is_worked
            self._watch_models()
        if len(self.ahead) >= _MAX_RECOGNISED:
            self.ahead[-_MAX_RECOGNISED].tensors = []
        self.ahead.append(
            Fetched(
                handout=handout,
                weight=weight,
                made=next_number(),
                thread=threading.get_ident(),
                number=self._num_fetched,
                tensors=list(tensors_in(batch)),
                is_void=is_void,
            )
        )
        self._num_fetched += 1
        self._forget_left_out(before=self._num_fetched - _MAX_RECOGNISED)

    def take_up(self) -> Fetched | None:
        """The loop goes on to the next batch that it has fetched, if it has one."""
        self.present = self.ahead.popleft() if self.ahead else None
        return self.present

    def count_pass(self) -> None:
        """A backward pass of the present batch is over."""
        self._recognised = None
        if self.present is not None:
            self.present.passes += 1
            self.present.is_left = False
            self._last_worked = self.present

    def count_step(self) -> None:
        """An optimizer has made its step with the present batch."""
        if self.present is not None:
            self.present.steps += 1
            self._last_worked = self.present

    def drop(self) -> None:
        """The loop is done with the present batch."""
        over, self.present = self.present, None
        assert over is not None
        over.over_at = next_number()
        if self._recognised is over:
            self._recognised = None
        if over.is_left_out:
            self._left_out.append(over)
        else:
            over.tensors = []
        if over.is_worked and not over.is_void:
            self._passes, self._steps = max(1, over.passes), over.steps
            self.is_in_window = not over.handout.is_update

    def void(self) -> None:
        """The group is another one. The loop still has the batches ahead: they count nothing."""
        self.is_in_window = False
        for batch in self.ahead:
            batch.is_void = True

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For what the loop does not do with the batches that it holds."""
        present, ahead = self.present, self.ahead
        self.present, self.ahead = None, deque()
        yield
        self.present, self.ahead = present, ahead

    def clear(self) -> None:
        """The loop has none of these batches any more."""
        self.present = self._recognised = self._evaluated = self._last_worked = None
        self._calls.clear()
        self._forget_left_out(before=self._num_fetched)
        self.ahead.clear()
        self.is_in_window = False

    def close(self) -> None:
        """Takes the hooks off the models."""
        self.clear()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # --- which batch a loss is of ----------------------------------------------------------------

    def find(self, losses: Any, *, is_weighed: bool) -> int:
        """How many batches the loop has passed over, if it now differentiates these losses.

        `is_weighed` says that it matters: what cannot be known is refused, or said.
        """
        present = self.present
        if present is None:
            return 0
        is_weighed = is_weighed and not present.is_void
        made = number_of(losses)
        newest = self._newest_before(made)
        recognised = self._recognised if made is None else self._calls.latest(made)
        if is_weighed:
            _check(present, made)
            recognised = self._look_closer(losses, recognised)
            self._check_order(recognised, made)
        if recognised is not None and recognised.over_at is not None:
            recognised = None  # computed since: nothing is known of what from
        is_news = newest > 0 and len(self.ahead) > self._lag and not present.is_worked
        if is_news and is_weighed and is_computed_since(losses, self.ahead[0].made):
            self._learn(present, recognised, losses)
        if recognised is not None and recognised in self.ahead:
            return min(1 + self.ahead.index(recognised), newest)
        if recognised is present or newest == 0:
            return 0
        return 1 if self._has_gone_on(present) else 0

    def _look_closer(self, losses: Any, recognised: Fetched | None) -> Fetched | None:
        """The batch that the models were given when these losses were computed, if that is known.

        The last call before a loss need not be what it is of, once the models were called with other
        batches: then its graph tells. A loop that computes one batch after the other pays nothing.
        """
        is_doubtful = recognised is not None and recognised.is_left_out
        others = (self.present, *self.ahead, *self._left_out)
        if not is_doubtful and not any(
            one is not None and one is not recognised and one.calls > one.passes for one in others
        ):
            return recognised
        owners = self._calls.owners(losses)
        if len(owners) > 1:
            raise UsageError(_SEVERAL)
        return next(iter(owners), None if is_doubtful else recognised)

    def _check_order(self, recognised: Fetched | None, made: int | None) -> None:
        """Refuses a loss of a batch that is over."""
        if recognised is None or recognised.over_at is None:
            return
        if recognised.is_left_out:
            raise UsageError(
                f"the loop computes {recognised.name} after {self._later_than(recognised).name}, "
                "which it fetched later: gangline takes a batch for left out when a later one is "
                "computed. Compute batches in the order in which they are fetched"
            )
        if made is not None and made < recognised.over_at:
            raise UsageError(_OVER)

    def _later_than(self, batch: Fetched) -> Fetched:
        """The batch that was computed instead."""
        last, present = self._last_worked, self.present
        assert present is not None
        return last if last is not None and last.number > batch.number else present

    def _newest_before(self, made: int | None) -> int:
        """How far ahead the newest batch is that was there when a loss was computed."""
        if made is None:
            return len(self.ahead)
        return sum(batch.made <= made for batch in self.ahead)

    def _has_gone_on(self, present: Fetched) -> bool:
        """Whether the loop, with nothing else to go by, is now at the batch after the present one."""
        if not present.is_worked:
            return False
        is_same_window = self.ahead[0].handout.step == present.handout.step
        return present.is_left or (self.is_complete and (is_same_window or self.is_exhausted))

    def _learn(self, present: Fetched, recognised: Fetched | None, losses: Any) -> None:
        """The loop is found to be further ahead than before, or to have skipped a batch."""
        if spans(losses, [batch.made for batch in self.ahead]):
            raise UsageError(_SEVERAL)
        if recognised is None:
            warnings.warn(
                f"the loop has fetched {1 + len(self.ahead)} batches before it computed the first of "
                "them, and gave the model none of their tensors: gangline takes them to be computed "
                "in the order in which they were fetched. A loop that skips a batch must call "
                "optimizer.step() for it too, or leave its samples out of the data set",
                stacklevel=7,
            )
        if recognised is None or recognised is present:
            self._lag = len(self.ahead)

    # --- what the models are given ---------------------------------------------------------------

    def _watch_models(self) -> None:
        """Only loops that fetch ahead pay for looking at what their models are given."""
        if not self._handles:
            self._handles = model_calls.watch(self._models, self.recognise, self._return)

    def recognise(self, model: nn.Module, inputs: Any) -> None:
        """A model is called: with the tensors of which batch?"""
        present = self.present
        self._evaluated = None
        if present is None or not any(model is one for one in self._models):
            return
        if present.thread != threading.get_ident():  # autograd's own, with numbers of its own
            return
        if not self.ahead and not self._left_out and torch.is_grad_enabled():
            self._calls.begin(model, present)
            return
        given = [tensor for tensor in tensors_in(inputs) if tensor.layout is torch.strided]
        owners = [one for one in (present, *self.ahead) if is_part(one.tensors, given)]
        has_history = any(tensor.requires_grad for tensor in given)
        if not torch.is_grad_enabled() and not has_history:
            # No loss can be of this call. (A reentrant checkpoint's call is given what has a history.)
            self._evaluated = owners[0] if len(owners) == 1 else None
            self._calls.begin(model, is_silent=True)
        elif not owners and (left_out := self._find_left_out(present, given)) is not None:
            self._calls.begin(model, left_out)
        elif not self.ahead:
            self._calls.begin(model, present)
        elif not owners and self._recognised is not None and has_history:
            self._calls.begin(model, is_silent=True)  # given what another made of the batch
        else:
            self._recognised = self._choose(present, owners, given)
            self._calls.begin(model, self._recognised)

    def _choose(
        self, present: Fetched, owners: Sequence[Fetched], given: Sequence[Tensor]
    ) -> Fetched | None:
        """The batch whose tensors are given, or copies of them; else what was recognised last."""
        if len(owners) == 1:
            return owners[0]
        if len(self.ahead) > self._lag and not present.is_worked:
            for batch in (present, *self.ahead):
                if any(is_copied(batch.tensors, tensor) for tensor in given):
                    return batch
        return self._recognised

    def _return(self, model: nn.Module) -> None:
        """A call of a model is over."""
        self._evaluated = None
        self._calls.end(model)

    def _find_left_out(self, present: Fetched, given: Sequence[Tensor]) -> Fetched | None:
        """The batch that the loop went past and whose tensors, or copies of them, are given now.

        A single tensor with the same values may be chance, such as a mask: all must have them.
        """

        def has_all(batch: Fetched) -> bool:
            return all(is_copied(batch.tensors, tensor) for tensor in given)

        for batch in self._left_out:
            if is_part(batch.tensors, given):
                return batch
        copied = next((batch for batch in self._left_out if given and has_all(batch)), None)
        if copied is None or any(has_all(batch) for batch in (present, *self.ahead)):
            return None
        return copied

    def _forget_left_out(self, *, before: int) -> None:
        """Lets go of the tensors of batches that were fetched before that many others."""
        while self._left_out and self._left_out[0].number < before:
            self._left_out.popleft().tensors = []


def _check(present: Fetched, made: int | None) -> None:
    """Refuses a backward pass of which nobody can say how much it counts."""
    if present.thread != threading.get_ident():
        raise UsageError(
            "the batches are fetched in one thread and backward() is called in another, so that "
            "nobody can tell which batch a gradient is of: iterate over the prepared loader in the "
            "thread that trains. DataLoader(num_workers=…) loads ahead without a thread of yours"
        )
    if made is not None and made < present.made:
        raise UsageError(_OVER)
