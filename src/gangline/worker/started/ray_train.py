# SPDX-License-Identifier: Apache-2.0
"""A worker of a trainer of Ray Train's own, such as TorchTrainer.

Ray Train knows rank and size, and carries the coordinator's address from the first worker to the
others. It sets the variables of torchrun, too, whose store is taken already.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gangline.worker.place import Place
from gangline.worker.started.serving import serve_here

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class RayTrainWorker:
    """A worker of a trainer of Ray Train's own, such as TorchTrainer."""

    run: str
    worker: int
    workers: int

    def place(self, *, timeout_s: float) -> Place:
        """The first worker serves the coordinator; Ray Train tells the others where."""
        if self.workers == 1:
            return Place(launcher="ray", run=self.run)
        import ray
        from ray.train.collective import broadcast_from_rank_zero

        server = told = None
        if self.worker == 0:
            host = str(ray.util.get_node_ip_address())
            server, url, token = serve_here(run=self.run, workers=self.workers, host=host)
            told = {"url": url, "token": token}
        found: dict[str, str] = broadcast_from_rank_zero(told)
        return Place(
            launcher="ray",
            run=self.run,
            worker=self.worker,
            workers=self.workers,
            find_coordinator=lambda: found["url"],
            token=found["token"],
            own_coordinator=server,
        )


def recognise(environment: Mapping[str, str]) -> RayTrainWorker | None:
    """What Ray Train says in this process; None: it runs nothing here."""
    context = _train_context()
    if context is None:
        return None
    return RayTrainWorker(
        run=str(context.get_experiment_name()),
        worker=int(context.get_world_rank()),
        workers=int(context.get_world_size()),
    )


def _train_context() -> Any:
    """That of a function which Ray Train runs in this process; None: it runs none."""
    train = sys.modules.get("ray.train")  # a process of Ray Train's has it loaded
    if train is None:
        return None
    try:
        context = train.get_context()
        context.get_world_size()
    except Exception:  # what it raises outside of such a function differs between versions
        return None
    return context
