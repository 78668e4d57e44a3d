# SPDX-License-Identifier: Apache-2.0
"""Whether an optimizer's step treats each parameter alone, as several servers would: tried in small.

A copy of the optimizer makes a few steps with small tensors together, and other copies with each of
them alone. Gradients of several sizes are tried: some optimizers look at all only above a threshold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gangline.paramserver.service.optimizers import (
    check_shardable,
    clone,
    make_step,
    wants_sparse,
)
from gangline.spec.errors import UnsupportedError
from gangline.spec.serving import WORKER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import Optimizer

    from gangline.spec.serving import Service

_PROBED = 4
"""The tensors have so many elements in each direction."""
_SIZES = (1.0, 1000.0, 0.001)
"""How large the gradients of each step are."""
_TOLERANCE = 1e-3


def check_trial(optimizer: Optimizer, service: Service) -> None:
    """Refuses an optimizer that servers would make something else of.

    One that cannot be tried on small tensors is not judged, nor one whose steps are random.
    """
    if service.update == WORKER or wants_sparse(optimizer):
        return
    chosen = _chosen(optimizer)
    try:
        together, tried = _steps(optimizer, chosen, seed=0)
        is_random = not _alike(together, _steps(optimizer, chosen, seed=1)[0])
        alone = [_steps(optimizer, [one], seed=0)[0][0] for one in chosen]
    except Exception:  # the first real step will tell
        return
    check_shardable(tried)
    if service.servers > 1 and not is_random and not _alike(together, alone):
        raise UnsupportedError(
            f"{type(optimizer).__name__} looks at several parameters at once, such as by one norm over "
            f"all gradients, and servers={service.servers} would each look at their own: a trial with "
            "small tensors gave other results alone than together. Take servers=1, or update=worker"
        )


def _chosen(optimizer: Optimizer) -> list[Tensor]:
    """Two parameters of the largest group, and one of another."""
    groups = sorted((g["params"] for g in optimizer.param_groups), key=len, reverse=True)
    return [one for group, count in zip(groups, (2, 1), strict=False) for one in group[:count]]


def _steps(
    optimizer: Optimizer, chosen: Sequence[Tensor], *, seed: int
) -> tuple[list[Tensor], Optimizer]:
    """What a copy of the optimizer makes of small tensors in the place of these, and the copy."""
    small = {id(one): _made(one, number=0) for one in chosen}
    with torch.random.fork_rng(devices=()), torch.no_grad():
        probe, _ = clone(optimizer, small)
        probe.state.clear()
        torch.manual_seed(seed)
        for number, size in enumerate(_SIZES, start=1):
            for one in chosen:
                small[id(one)].grad = _made(one, number=number) * size
            make_step(probe)
    return [small[id(one)] for one in chosen], probe


def _made(like: Tensor, *, number: int) -> Tensor:
    """Values that are the same in each trial."""
    shape = [min(_PROBED, size) for size in like.shape]
    dtype = torch.float32 if like.dtype.itemsize < torch.float32.itemsize else like.dtype
    return torch.randn(shape, generator=torch.Generator().manual_seed(number), dtype=dtype)


def _alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(
        torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * 1e-3, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )
