# SPDX-License-Identifier: Apache-2.0
"""Workers that run a plain script and the job made of it, one after the other, and compare them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from bodies_runtime import TIMEOUT_S, vectors
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

import gangline

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"


def run_page() -> float:
    """The difference that the page's example finds."""
    (code,) = re.findall(r"```python runnable\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, str(PAGE), "exec"), names)
    difference: float = names["difference"]
    return difference


def loader_of(order: str, num_workers: int) -> DataLoader[Any]:
    data = vectors(23)
    generator = torch.Generator().manual_seed(3)
    options: dict[str, Any] = {
        "shuffle": {"shuffle": True},
        "generator": {"shuffle": True, "generator": generator},
        "sampler": {"sampler": RandomSampler(data, generator=generator)},
    }[order]
    return DataLoader(data, batch_size=6, num_workers=num_workers, **options)


def train_with_dropout(prepare: Callable[..., Any], order: str, num_workers: int) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, loader = prepare(model, optimizer, loader_of(order, num_workers))
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
    return [*(p.detach().clone() for p in model.parameters()), torch.get_rng_state()]


def is_same_to_the_last_bit(order: str, num_workers: int) -> bool:
    gangline.init(timeout_s=TIMEOUT_S)
    plain = train_with_dropout(lambda *objects: objects, order, num_workers)
    job = train_with_dropout(gangline.prepare, order, num_workers)
    return all(map(torch.equal, plain, job))
