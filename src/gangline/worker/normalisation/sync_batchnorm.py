# SPDX-License-Identifier: Apache-2.0
"""Lets the BatchNorm layers of the prepared models normalise by the samples of all workers.

The layers stay what they are. Their class's `forward` is wrapped, once for the process, and looks up
whether a layer belongs to a prepared model: a copy of it, as an EMA model holds one, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gangline.spec.errors import ExchangeError, ExchangeMismatch, MismatchError, UnsupportedError
from gangline.worker.normalisation.batchnorm import normalise

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gangline.collectives import Group
    from gangline.worker.gradients.communicator import Communicator

Forward = Callable[[_BatchNorm, Tensor], Tensor]
_WRAPPED: tuple[type[_BatchNorm], ...] = (_BatchNorm, nn.SyncBatchNorm)
_PLAIN: Forward = _BatchNorm.forward
"""What a layer does without us; also in place of what SyncBatchNorm does."""


class Place(NamedTuple):
    """Where the loop is; the same on all workers when they exchange."""

    view: int
    epoch: int
    step: int
    micro: int


class Attempt(Protocol):
    """The batch that the loop works on."""

    def place_now(self) -> Place | None:
        """The batch that the passes belong to; None where they belong to no batch of the job."""
        ...

    def weight_now(self) -> float:
        """How much the gradients of that batch count here; 0 for a ghost."""
        ...

    @property
    def is_void(self) -> bool:
        """Whether that batch counts nothing any more, and will be handed out again."""
        ...

    def amid_computing(self) -> AbstractContextManager[None]:
        """A context for an exchange in the middle of a pass: its time is none of computing."""
        ...

    def lose(self, error: ExchangeError) -> None:
        """Somebody was lost: the attempt is void. Raises the error where nobody can mend it."""
        ...


def batch_norms(models: Sequence[nn.Module]) -> list[tuple[str, _BatchNorm]]:
    """The layers with batch statistics, each once, with their names."""
    found: dict[int, tuple[str, _BatchNorm]] = {}
    for index, model in enumerate(models):
        prefix = f"model {index}: " if len(models) > 1 else ""
        for name, module in model.named_modules():
            if isinstance(module, _BatchNorm):
                found.setdefault(id(module), (prefix + (name or "the model"), module))
    return list(found.values())


def check_synchronisable(layers: Sequence[tuple[str, _BatchNorm]]) -> None:
    """Refuses layers that compute their statistics in a way of their own."""
    known = {_PLAIN, nn.SyncBatchNorm.forward}
    for name, module in layers:
        if type(module).forward not in known or "forward" in vars(module):
            raise UnsupportedError(
                f"module {name!r} is a {type(module).__name__} with a forward() of its own, which "
                "sync_batchnorm=True cannot replace: use nn.BatchNorm1d, 2d or 3d, or leave "
                "sync_batchnorm out"
            )


class SyncedBatchNorms:
    """The layers of the prepared models, from here until `close`."""

    def __init__(
        self, models: Sequence[nn.Module], attempt: Attempt, communicator: Communicator
    ) -> None:
        self._attempt = attempt
        self._communicator = communicator
        layers = batch_norms(models)
        self.names = [name for name, _ in layers]
        self._layers: WeakKeyDictionary[_BatchNorm, _Layer] = WeakKeyDictionary(
            {module: _Layer(self, index) for index, (_, module) in enumerate(layers)}
        )
        self._originals = [(kind, kind.forward) for kind in _WRAPPED]
        for kind, original in self._originals:
            kind.forward = self._wrap(original)  # type: ignore[method-assign,assignment]
        torch.compiler.reset()  # what was compiled before has the old one inside

    def close(self) -> None:
        """All layers are plain again."""
        for kind, original in self._originals:
            kind.forward = original  # type: ignore[method-assign]
        self._originals = []
        torch.compiler.reset()

    def _wrap(self, original: Forward) -> Forward:
        def forward(module: _BatchNorm, x: Tensor) -> Tensor:
            layer = self._layers.get(module)
            return original(module, x) if layer is None else self._forward(module, x, layer)

        wrapped: Forward = torch.compiler.disable(forward)  # type: ignore[no-untyped-call]
        return wrapped

    def _forward(self, module: _BatchNorm, x: Tensor, layer: _Layer) -> Tensor:
        is_alone = self._communicator.group.size == 1
        if is_alone or not module.training or self._attempt.place_now() is None:
            return _PLAIN(module, x)
        module._check_input_dim(x)  # type: ignore[no-untyped-call]
        return normalise(module, x, layer)

    @property
    def weight(self) -> float:
        """How much this worker's gradients count."""
        return self._attempt.weight_now()

    @property
    def is_void(self) -> bool:
        """Whether the attempt at the present batch has failed."""
        return self._attempt.is_void

    def add(self, own: Tensor, *, layer: int, is_backward: bool) -> Tensor:
        """The sum over all members; `own` where the attempt is void, now or from before."""
        place = self._attempt.place_now()
        if self._attempt.is_void or place is None:
            return own
        total = own.clone()
        stated = np.array([layer, int(is_backward), *place], dtype=np.int64)
        header = np.concatenate([stated, -stated])

        def exchange(group: Group) -> None:
            group.all_reduce(total, header)

        try:
            with self._attempt.amid_computing():
                self._communicator.call(exchange)
        except ExchangeMismatch as error:
            where = self._describe([layer, int(is_backward), *place])
            self._attempt.lose(ExchangeMismatch(f"{_DRIFTED}: this one is {where}. {error}"))
            return own
        except ExchangeError as error:
            self._attempt.lose(error)
            return own
        most, least = header[: len(stated)].tolist(), (-header[len(stated) :]).tolist()
        if most != least:
            between = f"{self._describe(least)}, or before it, and {self._describe(most)}"
            raise MismatchError(f"{_DRIFTED}: they are between {between}. {_WHAT_TO_DO}")
        return total

    def _describe(self, stated: Sequence[int]) -> str:
        layer, is_backward, *rest = stated
        place = Place(*rest)
        return (
            f"in the {'backward' if is_backward else 'forward'} pass of layer "
            f"{self.names[layer]!r} at step {place.step}"
            + (f", part {place.micro}" if place.micro else "")
        )


_DRIFTED = "the workers' loops have drifted apart while they exchange batch statistics"
_WHAT_TO_DO = (
    "With sync_batchnorm=True all workers must run the same layers in the same order for every batch: "
    "no layer, backward(), break or continue that depends on the local batch, on rank() or on a "
    "random number of the worker's own"
)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's sums over the workers."""

    norms: SyncedBatchNorms
    index: int

    def part(self) -> float:
        return self.norms.weight

    @property
    def is_void(self) -> bool:
        return self.norms.is_void

    def add(self, own: Tensor, *, is_backward: bool) -> Tensor:
        return self.norms.add(own, layer=self.index, is_backward=is_backward)
