# SPDX-License-Identifier: Apache-2.0
"""Keeps the models' buffers together: running statistics are averaged by share.

Constant buffers (masks, tables of positions) never travel: only what changed since the last exchange
does. Buffers of whole numbers should count the same on all workers, steps for example, and are left
alone: those that differ are named at the end of an epoch. What is kept per sample (`SampleState`) is
brought together, not averaged.
"""

from __future__ import annotations

import warnings
import zlib
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gangline.worker.samples.sample_state import SampleState, tables_of
from gangline.worker.usercode import find_caller

if TYPE_CHECKING:
    from collections.abc import Sequence


class Buffers:
    """The floating-point buffers of the models, and which of them have changed."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._watched: list[tuple[dict[str, Tensor | None], str, str]] = []
        """By owner and name, as a forward pass may assign a new tensor; with the tell-tale's name."""
        self.tables = tables_of(models)
        self.ahead: list[Tensor] = []
        """The tables after the passes of the present step that are done: for who runs them again."""
        seen = {id(table.values) for table in self.tables}
        for model in models:
            for module in model.modules():
                for name, buffer in module._buffers.items():
                    if buffer is None or not buffer.is_floating_point() or id(buffer) in seen:
                        continue
                    seen.add(id(buffer))
                    self._watched.append((module._buffers, name, _tell_tale(module, name)))
        self._marks = self._mark()

    @property
    def all(self) -> list[Tensor]:
        return [_present(owner, name) for owner, name, _ in self._watched]

    def changed(self) -> bytes:
        """One byte per buffer and table: 1 where it changed since the last `settle`."""
        buffers = bytes(
            old is not new or before != after
            for (old, before), (new, after) in zip(self._marks, self._mark(), strict=True)
        )
        return buffers + bytes(table.is_written for table in self.tables)

    def settle(self) -> None:
        """What the buffers hold now is the same on all workers."""
        self._marks = self._mark()

    def settle_alone(self) -> None:
        """What this worker has is the average and the sum: devices are not waited for."""
        for table in self.tables:
            table.forget_writes()
        self.settle()

    def _mark(self) -> list[tuple[Tensor, int]]:
        tales = [_present(owner, tale) for owner, _, tale in self._watched]
        return [(tale, tale._version) for tale in tales]

    def collect(self, chosen: Sequence[bool | int], weight: float) -> Tensor:
        """The chosen buffers, weighted, and tables, in one flat tensor of double precision.

        It is on the buffers' device where that is one: each copy from there has to be waited for.
        """
        parts = [_joined(run) * weight for run in self._runs(chosen)]
        if weight == 0:  # a ghost's statistics may be anything, and 0 * inf is not 0
            parts = [torch.zeros_like(part) for part in parts]
        parts += [table.contribution() for table in self._chosen_tables(chosen)]
        if len({part.device for part in parts}) > 1:
            parts = [part.cpu() for part in parts]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def restore(self, chosen: Sequence[bool | int], flat: Tensor) -> None:
        """Writes the averages back. (`.data`: a graph that still needs the buffer stays valid.)"""
        start = 0
        for run in self._runs(chosen):
            lengths = [buffer.numel() for buffer in run]
            values = flat[start : start + sum(lengths)].to(run[0].dtype).to(run[0].device)
            pieces = zip(run, torch.split(values, lengths), strict=True)
            shaped = [piece.view(buffer.shape) for buffer, piece in pieces]
            torch._foreach_copy_([buffer.data for buffer in run], shaped)
            start += sum(lengths)
        for table in self._chosen_tables(chosen):
            table.take_over(flat[start : start + table.num_sent])
            start += table.num_sent

    def _runs(self, chosen: Sequence[bool | int]) -> list[list[Tensor]]:
        """The chosen buffers, those together that follow each other and are of one kind."""
        taken = [buffer for buffer, take in zip(self.all, chosen, strict=False) if take]
        runs = groupby(taken, key=lambda buffer: (buffer.device, buffer.dtype))
        return [list(run) for _, run in runs]

    def copies(self) -> list[Tensor]:
        """The tables as they are now."""
        return [table.values.clone() for table in self.tables]

    def catch_up(self) -> None:
        """The present pass was done before: so was what it brings into the tables."""
        for table, values in zip(self.tables, self.ahead, strict=False):
            table.become(values)
        self.ahead = []

    def _chosen_tables(self, chosen: Sequence[bool | int]) -> list[SampleState]:
        flags = chosen[len(self._watched) :]
        return [table for table, take in zip(self.tables, flags, strict=True) if take]


def _joined(buffers: list[Tensor]) -> Tensor:
    """All values in a row: few calls, as each takes a device longer than what it moves."""
    return torch.cat([buffer.detach().reshape(-1) for buffer in buffers]).double()


class WholeNumbers:
    """The buffers of whole numbers, which each worker keeps for itself: they should be the same."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._watched: dict[str, tuple[dict[str, Tensor | None], str]] = {}
        """By a name for people: the owner, as a forward pass may assign a new tensor, and its name."""
        self.checksums: dict[str, int] = {}
        """By the buffer's name, a number that two workers share if its values are the same."""
        self._has_warned = False
        seen: set[int] = set()
        for number, model in enumerate(models):
            prefix = f"{number}." if len(models) > 1 else ""
            for path, module in model.named_modules():
                if isinstance(module, SampleState):
                    continue  # it notes which samples were written here
                for name, buffer in module._buffers.items():
                    if buffer is None or id(buffer) in seen or not _is_whole(buffer):
                        continue
                    seen.add(id(buffer))
                    full = f"{prefix}{path}{'.' if path else ''}{name}"
                    self._watched[full] = (module._buffers, name)

    @property
    def versions(self) -> dict[str, tuple[int, int]]:
        """By the buffer's name, what changes whenever it is written to, or replaced."""
        found = {full: owner[name] for full, (owner, name) in self._watched.items()}
        return {full: (id(one), one._version) for full, one in found.items() if one is not None}

    def copies(self, since: dict[str, tuple[int, int]]) -> dict[str, Tensor]:
        """Those that were written to since they had these versions, by their names."""
        changed = [full for full, version in self.versions.items() if since.get(full) != version]
        return {full: _present(*self._watched[full]).clone() for full in changed}

    def put_back(self, copies: dict[str, Tensor]) -> None:
        """Gives buffers these values again."""
        for full, copy in copies.items():
            _present(*self._watched[full]).data.copy_(copy)

    def look(self) -> None:
        """Takes the checksums of what the buffers hold now."""
        for full, (owner, name) in self._watched.items():
            self.checksums[full] = _checksum(owner[name])

    def warn_of(self, differing: Sequence[str], *, is_main: bool) -> None:
        """Says once, on one worker, which buffers were found to differ."""
        if not differing or self._has_warned or not is_main:
            return
        self._has_warned = True
        names = ", ".join(map(repr, differing))
        warnings.warn(
            f"at the end of an epoch the workers have different values in buffers of whole numbers: "
            f"{names}. Each worker counts its own samples there, and what is saved is what one of them "
            "has. Add up over all workers by gangline.sum(…), or keep what belongs to samples in a "
            "gangline.SampleState",
            UserWarning,
            stacklevel=find_caller().depth,
        )


def _is_whole(buffer: Tensor) -> bool:
    is_other = buffer.is_floating_point() or buffer.is_complex() or buffer.is_quantized
    return not is_other and buffer.layout is torch.strided


def _checksum(buffer: Tensor | None) -> int:
    if buffer is None:
        return 0
    values = buffer.detach().cpu().reshape(-1).contiguous()
    return zlib.crc32(values.view(torch.uint8).numpy().data)


def checksum(flags: bytes) -> int:
    """A number that two workers share if, for all that matters, their flags are equal."""
    return zlib.crc32(flags)


def _present(owner: dict[str, Tensor | None], name: str) -> Tensor:
    buffer = owner[name]
    assert buffer is not None
    return buffer


def _tell_tale(module: nn.Module, name: str) -> str:
    """The buffer whose version shows that the buffer `name` changed.

    BatchNorm's kernels write the running statistics without raising their version, but they count
    the batches in a tensor that does. (InstanceNorm counts nothing, and raises the version.)
    """
    if isinstance(module, _BatchNorm) and module.num_batches_tracked is not None:
        return "num_batches_tracked"
    return name
