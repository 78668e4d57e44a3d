# SPDX-License-Identifier: Apache-2.0
"""What `prepare` refuses, because it could not be trained exactly, and what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from gangline.runtime.layout import optimizer_parameters
from gangline.runtime.order import DrawnOrder
from gangline.spec.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.runtime.order import Order
    from gangline.spec.sync import Sync


def check_models(models: Sequence[nn.Module], *, sync_batchnorm: bool = False) -> None:
    """Refuses models whose forward pass talks to other workers."""
    for model in models:
        for name, module in model.named_modules():
            where = f"module {name!r}" if name else "the model"
            if isinstance(module, nn.SyncBatchNorm) and not sync_batchnorm:
                raise UnsupportedError(
                    f"{where} is a SyncBatchNorm, whose forward pass waits for the other workers: call "
                    "prepare(…, sync_batchnorm=True), which normalises over all workers, exactly with "
                    "any shares, whether the layer is a SyncBatchNorm or a plain BatchNorm; or use "
                    "GroupNorm or LayerNorm"
                )
            if isinstance(module, DistributedDataParallel | DataParallel):
                raise UnsupportedError(
                    f"{where} is wrapped in {type(module).__name__}: give prepare() the plain model "
                    "(model.module); gangline exchanges the gradients itself"
                )
        for name, parameter in model.named_parameters():
            if isinstance(parameter, DTensor):
                raise UnsupportedError(
                    f"parameter {name!r} is a DTensor: its forward pass communicates. Give prepare() "
                    "a model that is whole on every worker"
                )
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise UsageError(
                    f"parameter {name!r} of a lazy module has no shape yet: run one forward pass "
                    "before prepare()"
                )


def check_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], models: Sequence[nn.Module]
) -> None:
    """Refuses optimizers that call the model themselves, or that train nothing of the models."""
    known = {id(parameter) for model in models for parameter in model.parameters()}
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UnsupportedError(
                "LBFGS evaluates the loss several times per step, each worker on its own share, and "
                "would take different decisions on each: use a first-order optimizer"
            )
        if not any(id(parameter) in known for parameter in optimizer_parameters(optimizer)):
            raise UsageError(
                f"the {type(optimizer).__name__} optimizer trains no parameter of the given models: "
                "give prepare() the model that it was made for"
            )


def check_apart(sync: Sync, order: Order, *, is_elastic: bool) -> None:
    """Refuses what groups that train at their own pace cannot share."""
    reason = why_in_step(order, is_elastic=is_elastic)
    if sync.is_relaxed and reason:
        raise UnsupportedError(f"with sync={str(sync)!r} {reason}, or train with sync='full'")


def why_in_step(order: Order, *, is_elastic: bool) -> str:
    """Why groups cannot train at their own pace, and what to do about it; empty where they can."""
    if isinstance(order, DrawnOrder):
        return (
            f"the order of the samples cannot be {order.name}: every group would draw an order of "
            "its own, and samples would be used twice or not at all. Use shuffle=True or no sampler"
        )
    if not is_elastic:
        return "groups come together over the transport wire or wire-tcp: choose one of these"
    return ""


def check_loader(loader: DataLoader[object]) -> None:
    """Refuses loaders whose batches cannot be cut exactly."""
    if type(loader) is not DataLoader:
        raise UnsupportedError(
            f"the loader is a {type(loader).__name__}; only a plain torch.utils.data.DataLoader can "
            "be rebuilt for unequal shares: move the subclass's work into the data set or collate_fn"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise UnsupportedError(
            "an IterableDataset cannot be cut so that every sample is used exactly once: give the "
            "data set __len__ and __getitem__ (a map-style data set)"
        )
    if loader.batch_sampler is None:
        raise UnsupportedError(
            "the loader has batch_size=None, so it hands out single samples: set batch_size, and "
            "give prepare() the global_batch"
        )
    if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
        raise UnsupportedError(
            f"the loader has a batch sampler of its own ({type(loader.batch_sampler).__name__}): "
            "gangline makes the batches. Give the order by sampler= and the size by global_batch="
        )
    if isinstance(loader.sampler, DistributedSampler):
        raise UnsupportedError(
            "the loader has a DistributedSampler: remove it; gangline cuts every global batch itself "
            "(shuffle=True keeps the order random)"
        )
    if not getattr(loader, "in_order", True):
        raise UnsupportedError(
            "the loader has in_order=False: batches must arrive in the order in which they were cut; "
            "leave in_order at True"
        )
    try:
        length = len(loader.dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise UnsupportedError(
            f"the data set {type(loader.dataset).__name__} has no __len__: gangline must know how "
            "many samples an epoch has"
        ) from error
    if length == 0:
        raise UsageError("the data set is empty: there is nothing to train on")
