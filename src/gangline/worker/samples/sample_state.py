# SPDX-License-Identifier: Apache-2.0
"""State that belongs to samples and is carried from step to step, such as the hidden state of an LSTM.

A sample may be computed by another worker in the next step, because shares change. So every worker
holds the whole table, and what the workers wrote in a step is brought together in the exchange of its
gradients (`Buffers`): an attempt that fails leaves the table as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


class SampleState(nn.Module):
    """One tensor per sample, kept from step to step: read it by indices, write it by indices.

    Make it part of the model, so that it is prepared with it:

        self.hidden = gangline.SampleState(num_columns, num_layers, width)
        …
        hidden = self.hidden[index]             # (len(index), num_layers, width)
        output, hidden = self.rnn(x, hidden)
        self.hidden[index] = hidden             # before backward(); its graph is cut off

    All samples begin with zeros. Within a global batch a sample may be there once.
    """

    values: Tensor
    """The state of every sample; the same on all workers."""
    _written: Tensor

    def __init__(
        self,
        count: int,
        *shape: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        values = torch.zeros(count, *shape, dtype=dtype, device=device)
        if not values.is_floating_point():
            raise UsageError(f"a SampleState holds floating-point numbers, not {values.dtype}")
        self.register_buffer("values", values)
        # A buffer, because a failed attempt takes it back with the others.
        written = torch.zeros(count, dtype=torch.bool, device=device)
        self.register_buffer("_written", written, persistent=False)

    def __getitem__(self, index: Sequence[int] | Tensor) -> Tensor:
        """The states of these samples, as the last steps left them."""
        return self.values[index].clone()

    def __setitem__(self, index: Sequence[int] | Tensor, states: Tensor) -> None:
        """Keeps the states of these samples. In a ghost batch it changes nothing."""
        if _watcher is not None and not _watcher.may_write(self):
            return
        with torch.no_grad():
            self.values[index] = states.detach().to(self.values.dtype)
            self._written[index] = True

    def reset(self) -> None:
        """All states are zero again. All workers must do it at the same place."""
        with torch.no_grad():
            self.values.zero_()
            self._written.zero_()

    @property
    def is_written(self) -> bool:
        """Whether this worker has written since the last exchange."""
        return bool(self._written.any())

    @property
    def num_sent(self) -> int:
        """How many numbers `contribution` has."""
        return self.values.numel() + self._written.numel()

    def contribution(self) -> Tensor:
        """What this worker wrote, with zeros for the rest, and what that was: to be summed."""
        written = self._written.view(-1, *[1] * (self.values.dim() - 1))
        own = torch.where(written, self.values, torch.zeros_like(self.values))
        return torch.cat([own.reshape(-1).double().cpu(), self._written.double().cpu()])

    def take_over(self, total: Tensor) -> None:
        """Keeps what all workers wrote: the sum of their contributions."""
        values, writers = total[: self.values.numel()], total[self.values.numel() :]
        if bool((writers > 1).any()):
            raise UsageError(
                f"the state of sample {int(writers.argmax())} was written by {int(writers.max())} "
                "workers in one step: within a global batch a sample of a SampleState may be there once"
            )
        chosen = (writers > 0).to(self.values.device)
        self.values.data[chosen] = values.view_as(self.values).to(self.values)[chosen]
        self.forget_writes()

    def forget_writes(self) -> None:
        """What was written is known to all workers."""
        self._written.zero_()

    def become(self, values: Tensor) -> None:
        """Takes over another worker's table."""
        self.values.data.copy_(values)
        self.forget_writes()


class Watcher(Protocol):
    """Who knows whether a write counts."""

    def may_write(self, state: SampleState) -> bool: ...


_watcher: Watcher | None = None


def watch(watcher: Watcher | None) -> None:
    """From now on `watcher` is asked before every write; None: nobody is."""
    global _watcher
    _watcher = watcher


def tables_of(models: Sequence[nn.Module]) -> list[SampleState]:
    """The tables in these models, each once."""
    found = [m for model in models for m in model.modules() if isinstance(m, SampleState)]
    return list(dict.fromkeys(found))


def check_write(
    state: SampleState, known: Sequence[SampleState], *, is_in_batch: bool, is_late: bool
) -> None:
    """Raises where what is written would not reach the other workers."""
    if not any(state is one for one in known):
        raise UsageError(
            "this SampleState is not part of a model that prepare() was given, so the other workers "
            "would not get what is written: make it an attribute of the model before prepare()"
        )
    if not is_in_batch:
        raise UsageError(
            "a SampleState was written outside of the loop over the prepared loader: there nothing is "
            "exchanged. In an evaluation keep the state in a variable"
        )
    if is_late:
        raise UsageError(
            "a SampleState was written after backward(), in whose exchange the other workers get it: "
            "write it between the forward pass and backward()"
        )
