# SPDX-License-Identifier: Apache-2.0
"""Pushes what is ready while the backward pass goes on.

That is right only if nobody changes a gradient between the pass and the step, as clipping does, and a
GradScaler. So what was pushed is compared with what is there at the step: by sums over its bits and
its values, since neither `.data` nor a scaler leaves a trace in torch's counters. What has changed is
pushed again with the rest, and from then on everything is pushed after the backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gangline.worker.gradients.streams import SideStreams, is_queued

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from gangline.worker.gradients.layout import Slot, Unit

    Send = Callable[[Mapping[int, Tensor], Callable[[], None] | None], int | None]
    """Begins to push gradients by their indices, when they are there; under which number."""

_WORD = torch.int64
CHANGED = (
    "the loop changes gradients between the backward pass and step(), as clipping and a GradScaler do: "
    "from now on they are pushed after it, and not while the backward pass goes on"
)


class _Sent(NamedTuple):
    """A unit that was pushed."""

    unit: Unit
    clock: int
    number: int
    indices: dict[int, Slot]
    marks: tuple[Tensor, ...]


class EarlyPushes:
    """Which units were pushed early, and whether they still are what they were."""

    def __init__(self, parameters: Sequence[Tensor], tell: Callable[[str], None]) -> None:
        """`tell` is told why everything is pushed after the backward pass, if that comes to be so."""
        self._indices = {id(p): index for index, p in enumerate(parameters)}
        self._tell = tell
        self._last_pass = -1
        """Which backward pass was the last one before the last step."""
        self._sent: dict[int, _Sent] = {}
        self._is_off = False
        self._streams = SideStreams()

    def push(self, unit: Unit, *, which: int, clock: int, send: Send) -> None:
        """A unit has its sum, in this pass of the step; another pass may still add to it."""
        if self._is_off or which != self._last_pass or unit.flat is None:
            return
        slots = {
            self._indices[id(slot.parameter)]: slot
            for slot in unit.slots
            if id(slot.parameter) in self._indices and slot.rows is None and not slot.is_table
        }
        if not slots:
            return
        flat, await_ready = unit.flat, None
        if is_queued(flat.device):
            flat, copied = self._streams.to_host(flat)
            assert copied is not None
            await_ready = copied.synchronize
        gradients = {
            index: flat.as_strided(slot.place.size(), slot.place.stride(), slot.offset)
            for index, slot in slots.items()
        }
        marks = sums_of(unit.flat)
        number = send(gradients, await_ready)
        if number is not None:
            self._sent[unit.index] = _Sent(unit, clock, number, slots, marks)

    def counted(self, clock: int, *, passes: int) -> dict[int, int]:
        """A step is made after so many passes: the numbers of the gradients that are pushed already."""
        self._last_pass = passes - 1
        sent, self._sent = self._sent, {}
        counted: dict[int, int] = {}
        has_changed = False
        for one in sent.values():
            present = {i for i, slot in one.indices.items() if slot.parameter.grad is slot.view}
            if one.clock != clock:
                continue
            if not _is_same(one):
                has_changed = True
            else:
                counted |= dict.fromkeys(present, one.number)
        if has_changed and not self._is_off:
            self._is_off = True
            self._tell(CHANGED)
        return counted


def sums_of(flat: Tensor) -> tuple[Tensor, ...]:
    """Over all bits, and over all values; on the device, which is not waited for."""
    size = max(1, _WORD.itemsize // flat.itemsize)
    whole = flat.numel() // size * size
    bits = flat[:whole].view(_WORD).sum()
    return bits, flat[whole:].sum(), flat.sum()


def _is_same(sent: _Sent) -> bool:
    flat = sent.unit.flat
    if flat is None:
        return False
    # Not a number is never equal to itself: then it is pushed again, and refused.
    return all(torch.equal(a, b) for a, b in zip(sums_of(flat), sent.marks, strict=True))
