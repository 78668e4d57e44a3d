# SPDX-License-Identifier: Apache-2.0
"""Several schedulers, a moving average of the model, a gradient scaler, and layers frozen at first."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, ReduceLROnPlateau, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("PLAIN"):
    import no_gangline as gangline
else:
    import gangline

FEATURES, CLASSES = 8, 3


class Curve:
    """The losses; in `stateful`, because a step that is lost and done again counts once."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def state_dict(self) -> dict[str, list[float]]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.values = state["values"]


def samples(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(12)
    y = torch.randint(0, CLASSES, (count,), generator=generator)
    return TensorDataset(torch.randn(count, FEATURES, generator=generator) + y.view(-1, 1), y)


def main() -> None:
    torch.manual_seed(10)
    torch.set_default_dtype(torch.float64)
    backbone, head = nn.Linear(FEATURES, 10), nn.Linear(10, CLASSES)
    model: nn.Module = nn.Sequential(backbone, nn.Tanh(), head)
    backbone.requires_grad_(False)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer: Any = torch.optim.RMSprop(
        [{"params": head.parameters()}, {"params": backbone.parameters(), "lr": 2e-3}], lr=1e-2
    )
    per_step = SequentialLR(
        optimizer,
        [LinearLR(optimizer, 0.2, total_iters=4), MultiStepLR(optimizer, [3, 6])],
        milestones=[4],
    )
    per_epoch = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    curve = Curve()
    order = torch.Generator().manual_seed(
        10
    )  # of its own: it is kept when the first worker is lost
    loader: Any = DataLoader(samples(52), batch_size=10, shuffle=True, generator=order)

    gangline.init()
    model, optimizer, loader = gangline.prepare(
        model, optimizer, loader, stateful=[ema, per_step, per_epoch, scaler, curve]
    )
    for epoch in gangline.epochs(4):
        backbone.requires_grad_(epoch > 0)
        loss_of_epoch = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
            per_step.step()
            ema.update_parameters(model)
            n = 0 if gangline.is_ghost() else len(y)
            curve.values.append(gangline.mean(loss.item(), weight=n))
        loss_of_epoch = curve.values[-1]
        per_epoch.step(loss_of_epoch)
    if gangline.is_main():
        result = {
            "model": model.state_dict(),
            "ema": ema.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scale": scaler.get_scale(),
            "shown": curve.values,
        }
        torch.save(result, os.environ.get("RESULT", "schedules.pt"))


if __name__ == "__main__":
    main()
