# SPDX-License-Identifier: Apache-2.0
"""What a parameter server must hold, and what this machine has room for: known before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gangline.paramserver.service.optimizers import clone, make_step, wants_sparse
from gangline.profiling.cgroups import inspect_cgroups
from gangline.profiling.machine import inspect_memory

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from gangline.worker.prepare.prepared import Prepared

_PROBED = 4
"""An optimizer's step is tried on so many elements in each direction."""


def serving_bytes(optimizer: Optimizer) -> int:
    """The parameters of an optimizer, with the state that it will have of them."""
    total = 0.0
    for group in optimizer.param_groups:
        size = sum(parameter.nbytes for parameter in group["params"])
        total += size * (1 + state_ratio(optimizer, group)) if size else 0
    return round(total)


def state_ratio(optimizer: Optimizer, group: dict[str, Any]) -> float:
    """Bytes of state per byte of the group's parameters, by a step with a small one; 0: not known."""
    like: Tensor = max(group["params"], key=lambda one: one.numel())
    small = torch.zeros([min(_PROBED, size) for size in like.shape], dtype=like.dtype)
    if not small.numel() or wants_sparse(optimizer):
        return 0.0
    small.grad = torch.zeros_like(small)
    try:
        with torch.random.fork_rng(devices=()), torch.no_grad():
            probe, _ = clone(optimizer, {id(like): small})
            probe.state.clear()
            make_step(probe)
    except Exception:  # it is only an estimate: the first real step will tell
        return 0.0
    state = [value for value in probe.state[small].values() if isinstance(value, Tensor)]
    return sum(one.nbytes for one in state if one.dim() > 0) / small.nbytes


def free_bytes() -> int:
    """The memory that this machine has left, as far as this process may use it."""
    memory = inspect_memory(inspect_cgroups(Path("/")))
    return min(memory.available_bytes, memory.limit_bytes or memory.available_bytes)


def tell_room(prepared: Prepared) -> dict[str, Any]:
    """What of it the coordinator is told, in `Ready`: nothing where there are no servers."""
    if prepared.sync.service is None:
        return {}
    (optimizer,) = prepared.optimizers
    return {"serving_bytes": serving_bytes(optimizer), "free_bytes": free_bytes()}
