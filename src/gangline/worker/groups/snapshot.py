# SPDX-License-Identifier: Apache-2.0
"""What an attempt at a step may move before it fails: kept at the hand-out, put back afterwards.

A failed attempt changes no parameter and no optimizer state, because its `step()` does nothing. But the
forward pass has moved running statistics, and the user's loop goes on to its schedulers and scalers,
which know nothing of the failure. Their state is always that of the hand-out: who copies another
worker's state runs the user's loop from there, and moves them itself.

Where the loop changes the parameters or optimizer state itself they are kept and put back too.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from gangline.worker.gradients.by_hand import HandUpdates
from gangline.worker.groups.state import load_optimizer
from gangline.worker.samples.sample_state import tables_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.worker.gradients.carried import CarriedGradients, Values
    from gangline.worker.prepare.prepared import Prepared


class Companion(Protocol):
    """Something with state that goes with that of the models."""

    @property
    def stage(self) -> int: ...

    def catch_up(self, stage: int) -> None: ...

    def export(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any], /) -> None: ...


class _Kept(NamedTuple):
    """How things were."""

    buffers: list[Tensor]
    groups: list[dict[str, Any]]
    states: list[Any]
    parameters: list[Tensor] | None
    """Where the loop changes them itself."""
    optimizers: list[Any] | None
    """The optimizers' state, where the loop changes it itself."""


class Snapshot:
    """Buffers, the scalars of the optimizers' groups, and the state of schedulers and scalers."""

    def __init__(self, prepared: Prepared, gradients: CarriedGradients | None = None) -> None:
        self._prepared = prepared
        self._gradients = gradients
        self.by_hand = HandUpdates(prepared.models, prepared.optimizers)
        self._buffer_places: list[tuple[dict[str, Any], str]] = [
            (module._buffers, name)
            for model in prepared.models
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._parameters = [p for model in prepared.models for p in model.parameters()]
        """Those that were prepared: what comes later is each worker's own."""
        self._noted: _Kept | None = None
        self._tables = tables_of(prepared.models)
        self.ahead: list[Tensor] = []
        """The tables, as they are now, of the worker whose state was loaded last."""
        self.companion: Companion | None = None
        """What else those that are behind must copy."""
        self._kept = self._now()

    def take(self) -> None:
        """Keeps how things are now, or how they were at the last `note`."""
        self._kept, self._noted = self._noted or self._now(), None

    def note(self) -> None:
        """Notes how things are now: perhaps the loop is done with its batch, and on to the next one."""
        self._noted = self._now()

    def forget_note(self) -> None:
        """It was not: it has gone on to work with the batch."""
        self._noted = None

    def _now(self) -> _Kept:
        return _Kept(
            buffers=_clones(self._live_buffers()),
            groups=[_scalars(group) for group in self._live_groups()],
            states=[copy.deepcopy(item.state_dict()) for item in self._prepared.stateful],
            parameters=self._copied_parameters(),
            optimizers=self._copied_optimizers(),
        )

    def _copied_parameters(self) -> list[Tensor] | None:
        if not self.by_hand.is_seen:
            return None
        return [parameter.detach().clone() for parameter in self._parameters]

    def _copied_optimizers(self) -> list[Any] | None:
        if not self.by_hand.is_state_seen:
            return None
        return [copy.deepcopy(one.state_dict()["state"]) for one in self._prepared.optimizers]

    def restore(self) -> None:
        """Puts everything back as it was kept."""
        self.restore_updates()
        for item, state in zip(self._prepared.stateful, self._kept.states, strict=True):
            with _unseen(item):
                item.load_state_dict(copy.deepcopy(state))
        # After the schedulers: loading one does not restore the rates that it had set.
        for group, scalars in zip(self._live_groups(), self._kept.groups, strict=True):
            group.update(_scalars(scalars))
        for buffer, values in zip(self._live_buffers(), self._kept.buffers, strict=True):
            buffer.data.copy_(values)

    def take_updates(self) -> None:
        """An optimizer has made its step: where the loop changes the same, too, that is kept."""
        self._kept = self._kept._replace(
            parameters=self._copied_parameters(), optimizers=self._copied_optimizers()
        )

    def restore_updates(self) -> None:
        """A step was made before: what the loop has done to its results since counts nothing."""
        if self._kept.parameters is not None:
            _copy_all(self._kept.parameters, self._parameters)
        if self._kept.optimizers is not None:
            self._load_optimizers(copy.deepcopy(self._kept.optimizers))

    def _load_optimizers(self, states: list[Any]) -> None:
        for optimizer, state in zip(self._prepared.optimizers, states, strict=True):
            load_optimizer(optimizer, {**optimizer.state_dict(), "state": state})
        self.by_hand.note_states()

    def export(self) -> dict[str, Any]:
        """This worker's whole state, as another one can `load` it."""
        return {
            "parameters": self._kept.parameters or [p.detach() for p in self._parameters],
            "trainable": [p.requires_grad for p in self._parameters],
            "optimizers": self._kept.optimizers
            or [optimizer.state_dict()["state"] for optimizer in self._prepared.optimizers],
            "buffers": self._kept.buffers,
            "groups": self._kept.groups,
            "states": self._kept.states,
            "gradients": None if self._gradients is None else self._gradients.export(),
            "tables": [table.values for table in self._tables],
            "companion": None if self.companion is None else self.companion.export(),
        }

    def load(self, exported: dict[str, Any]) -> None:
        """Becomes like the worker that exported this."""
        _copy_all(exported["parameters"], self._parameters)
        # The loop may have frozen or unfrozen some, in an epoch that this worker was not there for.
        for parameter, is_trainable in zip(self._parameters, exported["trainable"], strict=True):
            parameter.requires_grad_(is_trainable)
        self._load_optimizers(exported["optimizers"])
        self._noted = None
        self._kept = self._now()._replace(
            buffers=exported["buffers"], groups=exported["groups"], states=exported["states"]
        )
        self.ahead = exported["tables"]
        self.load_gradients(exported["gradients"])
        if self.companion is not None:
            self.companion.load(exported["companion"])
        self.restore()

    @property
    def stage(self) -> int:
        """How far this worker is in what is done beside the steps."""
        return -1 if self.companion is None else self.companion.stage

    def catch_up(self, stage: int) -> None:
        """Does what a member at the same position has done beside the steps already."""
        if self.companion is not None:
            self.companion.catch_up(stage)

    def load_gradients(self, values: Values | None) -> None:
        """Goes on with the gradients that the loop has carried over to the next batch."""
        if self._gradients is not None:
            self._gradients.load(values)

    def _live_buffers(self) -> Sequence[Tensor]:
        """The buffers as they are now: a forward pass may assign new ones."""
        return [owner[name] for owner, name in self._buffer_places]

    def _live_groups(self) -> Sequence[dict[str, Any]]:
        optimizers: Sequence[torch.optim.Optimizer] = self._prepared.optimizers
        return [group for optimizer in optimizers for group in optimizer.param_groups]


def _clones(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of all: few calls for those on a device, each of which takes longer than what it moves."""
    copies = [torch.empty_like(tensor) for tensor in tensors]
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(index)
    for alike in kinds.values():
        torch._foreach_copy_(
            [copies[index] for index in alike], [tensors[index].detach() for index in alike]
        )
    return copies


@contextmanager
def _unseen(item: Any) -> Iterator[None]:
    """Lets an object's tensors be set although a graph that is still to be used holds them.

    A scaler's scale may be part of a loss whose attempt has failed, and whose pass is still to come.
    """
    held = vars(item).values() if hasattr(item, "__dict__") else ()
    tensors = tuple(value for value in held if isinstance(value, Tensor))
    with _unsafe_preserve_version_counter(tensors):
        yield


def _copy_all(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for target, values in zip(targets, sources, strict=True):
        target.data.copy_(values)


def _scalars(group: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)
        for key, value in group.items()
        if key != "params"
    }
