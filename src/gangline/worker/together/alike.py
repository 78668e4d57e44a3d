# SPDX-License-Identifier: Apache-2.0
"""Collective calls that all workers make alike: each says which call it makes, before it is made.

Without that, a sum of one loop and a barrier of another would pass for one call, or wait for ever.
The name of the call travels as a checksum in the header of the first exchange, which carries the
first values, too: a call with few values costs one exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
import numpy as np
import torch
from torch import Tensor

from gangline.collectives import gather_bytes
from gangline.spec.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


Met = dict[str, Any]
"""What was found where everybody came to one place, as it can be copied to who comes late.

`differing`: the names of checksums that are not the same everywhere. `figures`: the sums of what all
brought; empty where nobody else was there. `size`: how many were there.
"""


def meet_in(
    name: str,
    *,
    worker: int,
    checksums: Mapping[str, int],
    figures: Callable[[], Tensor] = lambda: torch.zeros(0, dtype=torch.float64),
) -> Callable[[Group], Met]:
    """An exchange in which everybody comes to the place of this name, with checksums and some figures.

    One checksum of them all travels with the name. Only where that differs they are sent each.
    """

    def meet(group: Group) -> Met:
        if group.size == 1:
            return {"differing": [], "figures": [], "size": 1}
        brought = torch.cat([_squared(_joined(checksums)), figures()])
        sums = add_alike(group, brought, name=name, worker=worker)
        differing = [] if _is_one(sums[:4], group.size) else _differing(group, checksums)
        return {"differing": differing, "figures": sums[4:].tolist(), "size": group.size}

    return meet


def _joined(checksums: Mapping[str, int]) -> int:
    return crc32(msgspec.msgpack.encode(sorted(checksums.items())))


def _squared(checksum: int) -> Tensor:
    """The two halves of a checksum, and their squares: sums of these are whole, and exact."""
    halves = divmod(checksum, 1 << 16)
    return torch.tensor([*halves, *(half * half for half in halves)], dtype=torch.float64)


def _is_one(sums: Tensor, size: int) -> bool:
    """Whether all members added the same: else the mean of the squares is more than that squared."""
    return bool((size * sums[2:] == sums[:2].square()).all())


def _differing(group: Group, own: Mapping[str, int]) -> list[str]:
    """The names of those that are not the same on all members, or that some do not have."""
    said = msgspec.msgpack.encode(dict(own))
    rows = [msgspec.msgpack.decode(row, type=dict[str, int]) for row in gather_bytes(group, said)]
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if len({row.get(name) for row in rows}) > 1]


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
