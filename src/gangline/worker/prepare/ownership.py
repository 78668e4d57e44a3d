# SPDX-License-Identifier: Apache-2.0
"""What `prepare(..., data="worker")` refuses, and what a worker with its own data says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.spec.config import OWN
from gangline.spec.errors import UnsupportedError, UsageError
from gangline.spec.sync import AUTO

if TYPE_CHECKING:
    from gangline.spec.config import RunConfig
    from gangline.spec.sync import Sync
    from gangline.worker.prepare.handshake import Introduction
    from gangline.worker.prepare.preparation import Options
    from gangline.worker.samples.loader_order import Batching
    from gangline.worker.samples.owned import Holdings

_MODES = "bsp, asp, ssp(4), backup(1), local(16), percentage(0.25), flexible or none"


def check_owned(
    options: Options, config: RunConfig, batching: Batching, sync: Sync, *, is_late: bool = False
) -> None:
    """Refuses what does not go with data that stays with its owner."""
    if is_late:
        raise UsageError(
            "this worker comes to a job that has begun, and with data='worker' the data of a job is "
            "that of the workers that began it: start the job again, with this worker"
        )
    _check_options(options, config)
    _check_survival(config)
    if batching.has_own_sizes:
        raise UnsupportedError(
            "with data='worker' a worker's batches are of one size, that of its loader, and this "
            "loader has a batch sampler of its own: give the DataLoader batch_size="
        )
    if not sync.is_relaxed or sync.kind == AUTO:
        raise UsageError(
            f"sync={str(sync)!r} cuts every global batch among all workers, and with data='worker' "
            "nobody can read another one's samples. To do: sync='bsp' makes the same updates by a "
            f"parameter server, one step by everybody's batches; or choose another of {_MODES}"
        )
    if sync.levels > 1 or sync.within:
        raise UsageError(
            f"sync={str(sync)!r} has groups of several workers, and with data='worker' each worker is "
            f"one of its own: choose one level, such as {_MODES}"
        )


def _check_options(options: Options, config: RunConfig) -> None:
    given = {
        "global_batch=": options.global_batch is not None,
        "shares": options.shares is not None or config.batch.shares is not None,
        "allocation": options.allocation is not None or config.batch.allocation is not None,
        "max_share=": options.max_share is not None,
        "min_share=": options.min_share is not None,
        "a structure": config.exchange.tree is not None,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise UsageError(
            f"{name} says how a global batch is cut among the workers, and with data='worker' each "
            "takes its batches from its own data: leave it out, and give each worker's DataLoader "
            "its batch_size"
        )


def _check_survival(config: RunConfig) -> None:
    """Refuses what would start workers whose data nobody knows."""
    if config.survival.respawn:
        raise UsageError(
            "--respawn starts workers in the place of lost ones, and with data='worker' only these had "
            "their data: leave it out. Who is back after a while goes on with its own"
        )


def told_by_owner(introduction: Introduction, holdings: Holdings | None) -> Introduction:
    """What a worker says of itself that has its own data: nothing of that but what all were told."""
    return msgspec.structs.replace(
        introduction,
        data=OWN,
        data_set_length=0,
        global_batch=0 if holdings is None else holdings.global_batch,
        drop_last=False,
        order="each worker's own",
        samples_per_epoch=0,
        data_of_workers=() if holdings is None else holdings.lengths,
    )


def estate(holdings: Holdings | None) -> tuple[int, int] | None:
    """Where this worker's samples are in the union of all; None: all workers read the same."""
    if holdings is None:
        return None
    return holdings.first, holdings.first + holdings.own.samples
