# SPDX-License-Identifier: Apache-2.0
"""`gangline.evaluate`: a validation set that is cut beforehand, or pulled until nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.worker.api import evaluate as evaluate_part

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def evaluate(loader: DataLoader[Any], *, scheme: str | None = None) -> DataLoader[Any]:
    """A loader over this worker's part of an evaluation data set; every sample is somebody's once.

    All workers must call it, and go through it to its end. Bring the results together with `mean`:

        correct = count = 0
        for x, y in gangline.evaluate(test_loader):
            correct += int((model(x).argmax(1) == y).sum())
            count += len(y)
        accuracy = gangline.mean(correct / max(count, 1), weight=count)

    Without a scheme each worker has a fixed part, by the speeds that training has shown. With one
    (`scheme="FAC2"`) workers pull batches until none is left: who is fast does more, also if nobody
    knows how fast it is, and what a worker had done that is lost is done again by the others.
    """
    if scheme is None:
        return evaluate_part(loader)
    from gangline.mapreduce.nodes.evaluation import pulled_loader

    return pulled_loader(loader, scheme)
