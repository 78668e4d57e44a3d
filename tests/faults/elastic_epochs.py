# SPDX-License-Identifier: Apache-2.0
"""Loops that look at the model between epochs; see `elastic_bodies`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from elastic_bodies import describe, mlp

import gangline
from gangline.spec.faults import Fault

if TYPE_CHECKING:
    from elastic_bodies import Parts


def looking(parts: Parts) -> dict[str, Any]:
    """After each epoch: the parameters, the rate, what the workers find together, and who saves it."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    model, optimizer, loader = parts.prepare(
        model, optimizer, parts.loader(), stateful=(scheduler,)
    )
    for epoch in parts.epochs():
        loss = torch.zeros(())
        for x, y, _ in parts.batches(loader):
            if not parts.is_alone:
                _await_spares()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        found = 0.0 if parts.is_alone else gangline.mean(loss.item())
        with torch.no_grad():
            figures = [float(parameter.sum()) for parameter in model.parameters()]
        is_main = parts.is_alone or gangline.is_main()
        parts.found_after[epoch] = (figures, optimizer.param_groups[0]["lr"], found), is_main
        scheduler.step()
        if epoch == parts.setup.epochs - 2 and parts.setup.hangs_last is not None:
            _hang(*parts.setup.hangs_last)
    return describe([model], [optimizer])


def _hang(worker: int, for_s: float) -> None:
    job = gangline.worker.api._job
    if job.session.place.worker == worker:
        job.training.gear.faults._happen(Fault(worker=worker, kind="hang", step=0, for_s=for_s))


def _await_spares() -> None:
    """In the second step of an epoch: until all spares have the state with which it began."""
    training = gangline.worker.api._job.training
    if training.gear.handout.step != training.epochs._first_step + 1:
        return
    deadline = time.monotonic() + 20
    while training.gear.giver.is_busy:
        assert time.monotonic() < deadline, "the spares have not got the state"
        time.sleep(0.02)
