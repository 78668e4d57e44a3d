# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases: a run in a project; offline with WANDB_MODE=offline."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import wandb

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from gangline.observe.exporters.exporter import Point

_LOCAL = ("offline", "disabled", "dryrun")


class WandbExporter:
    """Values over `step`, which is a value itself: wandb's own steps cannot be given out of order."""

    def __init__(self, project: str, run: str) -> None:
        mode = os.environ.get("WANDB_MODE")
        if mode not in _LOCAL and wandb.api.api_key is None:
            # It would ask for one, on a terminal that shows a training.
            raise UsageError("nobody is logged in: run `wandb login`, or set WANDB_MODE=offline")
        settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
        # Said here, too: what wandb has read of the environment it does not read again.
        mode = "offline" if mode == "dryrun" else mode
        self._run = wandb.init(project=project, name=run, mode=mode, settings=settings)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def put(self, point: Point) -> None:
        """Logs one row."""
        self._run.log({**point.values, "step": point.step, "epoch": point.epoch})

    def close(self, status: str) -> None:
        """Sends the rest, and says how the run ended."""
        self._run.finish(exit_code=0 if status == "done" else 1)


def open_exporter(where: str, run: str) -> WandbExporter:
    """`where` is the project."""
    return WandbExporter(where, run)
