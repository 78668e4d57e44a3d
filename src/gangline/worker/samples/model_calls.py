# SPDX-License-Identifier: Apache-2.0
"""The calls of the prepared models: which batch each was given, and which nodes it has made.

A node that autograd made during a call is of the batch that the call was given. So the graph of a loss
tells which batches it is of, whatever was computed or differentiated in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gangline.worker.samples.pass_graph import next_number, numbers_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from gangline.worker.samples.fetched import Fetched

_MAX_CALLS = 256
"""Of how many calls of the models it is kept whose tensors they were given."""


@dataclass(slots=True, eq=False)
class _Call:
    """A call of a model, from its first node to behind its last one."""

    model: nn.Module
    batch: Fetched | None
    """Whose tensors the model was given, if known."""
    start: int
    is_silent: bool
    stop: int | None = None
    """None before it has returned."""


class ModelCalls:
    """The latest calls that may have made a part of a loss's graph."""

    def __init__(self) -> None:
        self._calls: deque[_Call] = deque(maxlen=_MAX_CALLS)

    def begin(
        self, model: nn.Module, batch: Fetched | None = None, *, is_silent: bool = False
    ) -> None:
        """A model is called with the tensors of this batch. A silent call says nothing of a loss."""
        if batch is not None:
            batch.calls += 1
        self._calls.append(_Call(model, batch, next_number(), is_silent))

    def end(self, model: nn.Module) -> None:
        """The call of the model that began last has returned."""
        for call in reversed(self._calls):
            if call.model is model and call.stop is None:
                call.stop = next_number()
                if call.is_silent:
                    self._calls.remove(call)
                return

    def latest(self, made: int) -> Fetched | None:
        """The batch of the last call before this number, if that is known."""
        for call in reversed(self._calls):
            if call.start <= made and not call.is_silent:
                return call.batch
        return None

    def owners(self, losses: Any) -> set[Fetched]:
        """The batches that these losses are of, as far as they are known; looks at the whole graph."""
        calls = [call for call in self._calls if call.stop is not None]
        starts, stops = [call.start for call in calls], [call.stop or 0 for call in calls]
        found: set[Fetched] = set()
        for number in numbers_in(losses, since=starts[0]) if calls else ():
            at = bisect_right(starts, number) - 1
            while at >= 0 and stops[at] <= number:
                at -= 1  # it has returned before: the node may be of one that called that model
            batch = calls[at].batch if at >= 0 else None
            if batch is not None:
                found.add(batch)
        return found

    def clear(self) -> None:
        """Forgets all calls."""
        self._calls.clear()


def watch(
    models: Sequence[nn.Module],
    before: Callable[[nn.Module, Any], None],
    after: Callable[[nn.Module], None],
) -> list[RemovableHandle]:
    """Tells of every call of the models, with its inputs, and of its return."""
    handles = [model.register_forward_pre_hook(_Hook(before), with_kwargs=True) for model in models]
    after_hook = _Hook(lambda model, _: after(model))
    return handles + [model.register_forward_hook(after_hook) for model in models]


class _Hook:
    """Tells of a call. A copy of a model has the same hook: who is told does not know the copy."""

    def __init__(self, tell: Callable[[nn.Module, Any], None]) -> None:
        self._tell = tell

    def __call__(self, model: nn.Module, args: Any, more: Any) -> None:
        if not torch.compiler.is_compiling():
            self._tell(model, (args, more))

    def __deepcopy__(self, memo: Any) -> _Hook:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _do_nothing_hook, ()


def _do_nothing_hook() -> Any:
    """What is left of the hook in a model that was pickled."""
    return _do_nothing


def _do_nothing(model: nn.Module, args: Any, more: Any) -> None:
    """A hook of a model that takes part in no job."""
