# SPDX-License-Identifier: Apache-2.0
"""Finds out how this process was launched, and so who it is. Nothing else reads the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.worker.place import Place
from gangline.worker.started import (
    by_gangline,
    kubernetes,
    mpi,
    ray_job,
    ray_train,
    slurm,
    spark,
    torchrun,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.worker.started.recogniser import Recogniser, Started

RECOGNISERS: tuple[Recogniser, ...] = (
    by_gangline,
    kubernetes,
    ray_train,
    spark,
    torchrun,
    mpi,
    slurm,
    ray_job,
)
"""Who is asked, in this order: a launcher goes before those that it may have been started by."""


def find_launch(environment: Mapping[str, str]) -> Started | None:
    """Who started this process, as the environment says; None: nobody, it is a plain script."""
    for recogniser in RECOGNISERS:
        started = recogniser.recognise(environment)
        if started is not None:
            return started
    return None


def find_place(environment: Mapping[str, str], *, timeout_s: float) -> Place:
    """This process's place: that in a job, or that of a job of one."""
    started = find_launch(environment)
    if started is None:
        return Place(launcher="none", run="local")
    return started.place(timeout_s=timeout_s)
