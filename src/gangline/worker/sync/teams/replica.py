# SPDX-License-Identifier: Apache-2.0
"""What teams merge: this worker's parameters and running statistics, as one flat vector.

Optimizer state is each team's own between two rounds. Where all teams wait for each other, at the end
of an epoch, it is averaged too, and counters (Adam's steps, BatchNorm's batches) take the greatest
value: so all workers begin the next epoch alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gangline.worker.gradients.streams import Mark, SideStreams, is_queued, pinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.worker.prepare.prepared import Prepared


@dataclass(frozen=True)
class Copy:
    """The state of a team at one moment, or the mean over several."""

    flat: Tensor
    counters: tuple[float, ...]
    """What is counted and not averaged; in a whole copy only."""
    ready: Mark = None
    """When `flat` is there, where a device still writes it."""

    @property
    def values(self) -> Tensor:
        """Parameters, then floating-point buffers, then (in a whole copy) optimizer state."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.flat

    @cached_property
    def is_finite(self) -> bool:
        """Whether all values are numbers: a sum in which one is not would not be one either."""
        # A sum costs a third of looking at each, and is finite unless it overflows.
        is_sum_finite = bool(torch.isfinite(self.values.sum()))
        return is_sum_finite or bool(torch.isfinite(self.values).all())


class Replica:
    """The tensors that are merged, and how they are read and written."""

    def __init__(self, prepared: Prepared, *, alike: Sequence[Tensor] = ()) -> None:
        """`alike` are parameters that all teams have alike when they are merged: they are left out."""
        self._prepared = prepared
        self._alike = {id(parameter) for parameter in alike}
        tensors = [*self._parameters(), *self._buffers()]
        has_double = any(tensor.dtype == torch.float64 for tensor in tensors)
        self._dtype = torch.float64 if has_double else torch.float32
        self.num_shared = sum(tensor.numel() for tensor in tensors)
        """How many values every copy has; what follows is optimizer state."""
        self.num_parameters = sum(tensor.numel() for tensor in self._parameters())
        devices = {tensor.device for tensor in tensors}
        self._device = devices.pop() if len(devices) == 1 else None
        """Where all of it is, if that is one device."""
        self._streams = SideStreams()

    @property
    def _is_queued(self) -> bool:
        return self._device is not None and is_queued(self._device)

    def copy(self, *, is_whole: bool) -> Copy:
        """How things are now. One of a GPU leaves it while the next step is computed."""
        tensors = [*self._parameters(), *self._buffers()]
        if is_whole:
            counters = tuple(float(one) for one in self._counters())
            return Copy(self._flat([*tensors, *self._moments()]), counters)
        if not self._is_queued:
            return Copy(self._flat(tensors), ())
        there = torch.cat([tensor.detach().reshape(-1).to(self._dtype) for tensor in tensors])
        flat, ready = self._streams.to_host(there)
        return Copy(flat, (), ready)

    def difference(self, mean: Tensor, copy: Tensor) -> Tensor:
        """What `move` shall add to get from a copy to the mean, where a device can fetch it."""
        if not self._is_queued:
            return mean[: self.num_shared] - copy[: self.num_shared]
        out = pinned(self.num_shared, self._dtype)
        return torch.sub(mean[: self.num_shared], copy[: self.num_shared], out=out)

    def move(self, change: Tensor) -> None:
        """Adds to the parameters and running statistics."""
        start = 0
        if self._is_queued:
            change = change.to(self._device, non_blocking=True)
        for tensor in [*self._parameters(), *self._buffers()]:
            part = change[start : start + tensor.numel()].view(tensor.shape)
            tensor.data.add_(part.to(tensor.device, tensor.dtype))
            start += tensor.numel()

    def forget_wrong_moments(self) -> None:
        """Optimizer state that is no number begins anew, with zeros."""
        for moment in self._moments():
            if not bool(torch.isfinite(moment).all()):
                moment.data.zero_()

    def become(self, copy: Copy) -> None:
        """Takes over a copy, of this worker's own layout or without optimizer state and counters."""
        tensors = [*self._parameters(), *self._buffers()]
        if len(copy.values) > self.num_shared:
            tensors += self._moments()
        start = 0
        for tensor in tensors:
            part = copy.values[start : start + tensor.numel()].view(tensor.shape)
            tensor.data.copy_(part)
            start += tensor.numel()
        if copy.counters:
            for counter, value in zip(self._counters(), copy.counters, strict=True):
                counter.fill_(value)

    def _parameters(self) -> list[Tensor]:
        return [
            parameter.detach()
            for model in self._prepared.models
            for parameter in model.parameters()
            if id(parameter) not in self._alike
        ]

    def _buffers(self) -> list[Tensor]:
        return [one for one in self._all_buffers() if one.is_floating_point()]

    def _all_buffers(self) -> list[Tensor]:
        return [buffer for model in self._prepared.models for buffer in model.buffers()]

    def _moments(self) -> list[Tensor]:
        return [one for one in self._states() if one.is_floating_point() and one.dim() > 0]

    def _counters(self) -> list[Tensor]:
        states = [one for one in self._states() if not (one.is_floating_point() and one.dim() > 0)]
        whole = [one for one in self._all_buffers() if not one.is_floating_point()]
        return [one for one in [*states, *whole] if one.dim() == 0]

    def _states(self) -> list[Tensor]:
        """The optimizers' tensors, parameter by parameter in the order of their groups."""
        return [
            value
            for optimizer in self._prepared.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            for _, value in sorted(optimizer.state.get(parameter, {}).items())
            if isinstance(value, Tensor)
        ]

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        parts = [tensor.detach().reshape(-1).to("cpu", self._dtype) for tensor in tensors]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=self._dtype)
