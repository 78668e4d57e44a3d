# SPDX-License-Identifier: Apache-2.0
"""Which of the batches that the loop has fetched is it computing now?

A plain loop computes the batch that it fetched last. Others fetch ahead: nanoGPT gets the next batch
between forward and backward, a CUDA prefetcher is always one ahead, trainers fetch all batches of an
accumulation window first. A gradient must be weighted by the hand-out of the batch that it was
computed from, however far ahead the loop fetches. Three things tell which one that is:

1. Autograd numbers its nodes as it makes them. A loss with a smaller number than a fetch was
   computed before that fetch, so it is of an earlier batch.
2. The tensors that are given to a prepared model may be those of a batch, or copies of them.
3. Otherwise batches are computed in the order in which they were fetched. A batch is over when the
   loop fetches another one after its step.

The third is a guess where the loop skips batches, so it is said, once, with what to do.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle

    from gangline.runtime.handout import Handout

_MAX_RECOGNISED = 8
"""Of how many batches the tensors are kept, so that they can be recognised."""
_MAX_CALLS = 256
"""Of how many calls of the models it is kept whose tensors they were given."""
_OVER = (
    "this loss was computed before the present batch was fetched, and the batch it is of is over: "
    "call backward() on a loss before the optimizer's step, and before the loop fetches the batch "
    "after the next one"
)
_MAX_NODES = 100_000
"""How much of a loss's graph is looked at, where a loop is found to fetch ahead."""


@dataclass(slots=True, eq=False)
class Fetched:
    """A batch that the loop has got and not finished."""

    handout: Handout
    weight: float | Future[float]
    made: int
    """The number that autograd would have given to a node when the batch was fetched."""
    thread: int
    tensors: list[Tensor] = field(default_factory=list)
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
        self._calls: deque[tuple[int, Fetched | None]] = deque(maxlen=_MAX_CALLS)
        """Autograd's number when a model was called, and the batch that it was given, if known."""
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
                made=_next_number(),
                thread=threading.get_ident(),
                tensors=list(_tensors(batch)),
                is_void=is_void,
            )
        )

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

    def count_step(self) -> None:
        """An optimizer has made its step with the present batch."""
        if self.present is not None:
            self.present.steps += 1

    def drop(self) -> None:
        """The loop is done with the present batch."""
        over, self.present = self.present, None
        assert over is not None
        over.over_at, over.tensors = _next_number(), []
        if self._recognised is over:
            self._recognised = None
        if over.is_worked and not over.is_void:
            self._passes, self._steps = max(1, over.passes), over.steps
            self.is_in_window = not over.handout.is_update

    def void(self) -> None:
        """The group is another one. The loop still has the batches ahead: they count nothing."""
        self.is_in_window = False
        for batch in self.ahead:
            batch.is_void = True

    def clear(self) -> None:
        """The loop has none of these batches any more."""
        self.present = self._recognised = None
        self._calls.clear()
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
        made = _number_of(losses)
        if is_weighed:
            _check(present, made)
        newest = self._newest_before(made)
        recognised = self._recognised_in(made)
        if recognised is not None and recognised.over_at is not None:
            if is_weighed and made is not None and made < recognised.over_at:
                raise UsageError(_OVER)
            recognised = None  # computed since: nothing is known of what from
        is_news = newest > 0 and len(self.ahead) > self._lag and not present.is_worked
        if is_news and is_weighed and _is_computed_since(losses, self.ahead[0].made):
            self._learn(present, recognised, losses)
        if recognised is not None and recognised in self.ahead:
            return min(1 + self.ahead.index(recognised), newest)
        if recognised is present or newest == 0:
            return 0
        return 1 if self._has_gone_on(present) else 0

    def _recognised_in(self, made: int | None) -> Fetched | None:
        """The batch that the models were given when this loss was computed, if that is known.

        A batch may have several losses, and a loss several passes: each has the number by which it
        is found, whatever was computed or differentiated since.
        """
        if made is None:
            return self._recognised
        return next((batch for number, batch in reversed(self._calls) if number <= made), None)

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
        if _spans(losses, [batch.made for batch in self.ahead]):
            raise UsageError(
                "one backward() is called for the losses of several batches, which may count "
                "differently: call backward() for each batch (inside gangline.no_sync() to exchange "
                "once), or let prepare(…, accumulate=k) hand out the global batch in k parts"
            )
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
            hook = _InputHook(self)
            self._handles = [
                model.register_forward_pre_hook(hook, with_kwargs=True) for model in self._models
            ]

    def recognise(self, model: nn.Module, inputs: Any) -> None:
        """A model is called: with the tensors of which batch?"""
        present = self.present
        if present is None or not any(model is one for one in self._models):
            return
        if not self.ahead:
            self._calls.append((_next_number(), present))
            return
        given = [tensor for tensor in _tensors(inputs) if tensor.layout is torch.strided]
        owners = [batch for batch in (present, *self.ahead) if _is_part(batch, given)]
        if len(owners) == 1:
            self._recognised = owners[0]
        elif self._recognised is not None and any(tensor.requires_grad for tensor in given):
            return  # what another model has made of the batch
        elif len(self.ahead) > self._lag and not present.is_worked:
            copied = (batch for batch in (present, *self.ahead) if _is_copied(batch, given))
            self._recognised = next(copied, self._recognised)
        self._calls.append((_next_number(), self._recognised))


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


class _InputHook:
    """Calls `recognise`. A copy of a model has the same hook, which does not know the copy."""

    def __init__(self, batches: FetchedBatches) -> None:
        self._batches = batches

    def __call__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._batches.recognise(model, (args, kwargs))

    def __deepcopy__(self, memo: Any) -> _InputHook:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _do_nothing_hook, ()


def _do_nothing_hook() -> Any:
    """What is left of the hook in a model that was pickled."""
    return _do_nothing


def _do_nothing(model: nn.Module, args: Any, kwargs: Any) -> None:
    """A hook of a model that takes part in no job."""


def _tensors(batch: Any, depth: int = 3) -> Iterator[Tensor]:
    """The tensors in a batch: in containers, and in objects such as a graph's data."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif depth and hasattr(leaf, "__dict__") and not isinstance(leaf, type):
            yield from _tensors(vars(leaf), depth - 1)


def _is_part(batch: Fetched, given: Iterable[Tensor]) -> bool:
    """Whether one of the given tensors is one of the batch's, or a view that begins inside of it."""
    starts = [tensor.data_ptr() for tensor in given if tensor.numel()]
    return any(
        mine.data_ptr() <= start < mine.data_ptr() + _extent(mine)
        for mine in batch.tensors
        if mine.layout is torch.strided and mine.numel()
        for start in starts
    )


def _extent(tensor: Tensor) -> int:
    """Bytes from the first value of a tensor to behind its last one."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.itemsize * (1 + sum((size - 1) * stride for size, stride in strides))


def _is_copied(batch: Fetched, given: Iterable[Tensor]) -> bool:
    """Whether one of the given tensors has the values of one of the batch's, on another device, say."""
    return any(
        mine.shape == yours.shape
        and mine.dtype == yours.dtype
        and mine.layout is torch.strided
        and torch.equal(mine, yours.detach().to(mine.device))
        for yours in given
        for mine in batch.tensors
    )


def _next_number() -> int:
    """The number of the next node that autograd makes in this thread."""
    return int(torch._C._autograd._get_sequence_nr())


def _number_of(losses: Any) -> int | None:
    """The number of the newest node among these losses; None where there is none."""
    numbers = [node._sequence_nr() for node in _nodes(losses)]
    return max(numbers, default=None)


def _nodes(losses: Any) -> list[Any]:
    return [loss.grad_fn for loss in _tensors(losses) if loss.grad_fn is not None]


def _is_computed_since(losses: Any, mark: int) -> bool:
    """Whether a parameter was used since then: to scale a loss that was there already uses none."""
    nodes: list[Any] = _nodes(losses)
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node in seen or node._sequence_nr() < mark:
            continue  # what it is made of is older still
        seen.add(node)
        following = [one for one, _ in node.next_functions if one is not None]
        if any(one.name().endswith("AccumulateGrad") for one in following):
            return True
        nodes += following
    return False


def _spans(losses: Any, marks: Sequence[int]) -> bool:
    """Whether the graph of these losses was made partly before one of the marks, and partly after."""
    nodes: list[Any] = _nodes(losses)
    seen: set[Any] = set()
    least = most = None
    while nodes and len(seen) < _MAX_NODES:
        node = nodes.pop()
        if node in seen or node.name().endswith("AccumulateGrad"):
            continue
        seen.add(node)
        number = node._sequence_nr()
        least = number if least is None else min(least, number)
        most = number if most is None else max(most, number)
        nodes += [following for following, _ in node.next_functions if following is not None]
    return least is not None and most is not None and any(least < m <= most for m in marks)
