# SPDX-License-Identifier: Apache-2.0
"""Collective calls that all workers make alike: each says which call it makes, before it is made.

Without that, a sum of one loop and a barrier of another would pass for one call, or wait for ever.
The name of the call travels as a checksum in the header of the first exchange, which carries the
first values, too: a call with few values costs one exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import numpy as np
import torch
from torch import Tensor

from gangline.collectives import gather_bytes
from gangline.spec.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group

_ROOM = 16
"""So many values travel with the name."""

_Said = tuple[int, str]


def add_alike(group: Group, values: Tensor, *, name: str, worker: int) -> Tensor:
    """The sum over all members of flat float64 values. Raises MismatchError if calls differ."""
    first = torch.zeros(_ROOM, dtype=torch.float64)
    count = min(_ROOM, values.numel())
    first[:count] = values[:count]
    code = crc32(name.encode())
    header = np.array([code, -code], dtype=np.int64)
    group.all_reduce(first, header)
    if header[0] != -header[1]:
        raise MismatchError(_describe(group, name, worker))
    total = values.clone()
    if values.numel() > _ROOM:
        group.all_reduce(total)
    else:
        total.copy_(first[:count])
    return total


def meet_in(name: str, *, worker: int) -> Callable[[Group], bool]:
    """An exchange in which everybody comes to the place of this name."""

    def meet(group: Group) -> bool:
        add_alike(group, torch.zeros(0, dtype=torch.float64), name=name, worker=worker)
        return True

    return meet


def _describe(group: Group, name: str, worker: int) -> str:
    said = msgspec.msgpack.encode((worker, name))
    by_call: dict[str, list[int]] = {}
    for payload in gather_bytes(group, said):
        other, call = msgspec.msgpack.decode(payload, type=_Said)
        by_call.setdefault(call, []).append(other)
    calls = ", ".join(f"worker {_listed(workers)}: {call}" for call, workers in by_call.items())
    return (
        f"the workers do not make the same call: {calls}. All workers must make the same gangline "
        "calls in the same order: take them out of `if gangline.is_main():` and of what depends on "
        "the local batch"
    )


def _listed(workers: list[int]) -> str:
    return ", ".join(str(worker) for worker in workers)
