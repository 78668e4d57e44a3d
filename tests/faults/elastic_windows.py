# SPDX-License-Identifier: Apache-2.0
"""Loops that carry gradients over from batch to batch; see `elastic_bodies`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from elastic_bodies import describe, mlp

import gangline

if TYPE_CHECKING:
    from elastic_bodies import Parts


class Counter:
    """Counts batches. It is in `stateful`, so that a batch that is handed out again counts once."""

    def __init__(self) -> None:
        self.count = 0

    def is_end(self, window: int) -> bool:
        self.count += 1
        return self.count % window == 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def unzeroed(parts: Parts) -> dict[str, Any]:
    """Gradients are never zeroed: each step uses the sum of all before it."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            parts.average(1.0)
    return describe([model], [optimizer])


def own_windows(parts: Parts) -> dict[str, Any]:
    """A step after every third batch, which the loop counts itself."""
    return _windows(parts, is_synced=True)


def unsynced_windows(parts: Parts) -> dict[str, Any]:
    """The same, with `no_sync` where there is no step."""
    return _windows(parts, is_synced=False)


def _windows(parts: Parts, *, is_synced: bool) -> dict[str, Any]:
    model, counter = mlp(), Counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = parts.prepare(model, optimizer, parts.loader(), stateful=(counter,))
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            is_end = counter.is_end(3)
            is_plain = parts.is_alone or is_synced or is_end
            with nullcontext() if is_plain else gangline.no_sync():
                F.cross_entropy(model(x), y).backward()
            if is_end:
                optimizer.step()
                optimizer.zero_grad()
            parts.average(1.0)
    return describe([model], [optimizer])


def second_optimizer(parts: Parts) -> dict[str, Any]:
    """One layer is stepped at every batch, the other at every second one."""
    model, counter = mlp(), Counter()
    often = torch.optim.SGD(model[0].parameters(), lr=0.2, momentum=0.9)
    seldom = torch.optim.Adam(model[2].parameters(), lr=0.01)
    model, often, seldom, loader = parts.prepare(
        model, often, seldom, parts.loader(), stateful=(counter,)
    )
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            often.zero_grad()
            F.cross_entropy(model(x), y).backward()
            often.step()
            if counter.is_end(2):
                seldom.step()
                seldom.zero_grad()
            parts.average(1.0)
    return describe([model], [often, seldom])


def unzeroed_pair(parts: Parts) -> dict[str, Any]:
    """Two passes and two steps per batch; what the first one leaves is part of the second."""
    model = mlp()
    first = torch.optim.SGD(model[0].parameters(), lr=0.05)
    second = torch.optim.SGD(model[2].parameters(), lr=0.05)
    model, first, second, loader = parts.prepare(model, first, second, parts.loader())
    for _ in parts.epochs():
        for x, y, _ in parts.batches(loader):
            first.zero_grad()
            F.cross_entropy(model(x), y).backward()
            first.step()
            model(x).square().mean().backward()
            second.step()
    return describe([model], [first, second])
