# SPDX-License-Identifier: Apache-2.0
"""What `prepare` refuses, because it could not be trained exactly, and what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from gangline.paramserver.service.optimizers import check_shardable
from gangline.spec.errors import UnsupportedError, UsageError
from gangline.worker.gradients.layout import optimizer_parameters
from gangline.worker.prepare.sharding_trial import check_trial
from gangline.worker.samples.order import DrawnOrder
from gangline.worker.samples.sample_state import tables_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.worker.prepare.preparation import Options
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.samples.order import Order


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
    optimizers: Sequence[torch.optim.Optimizer],
    models: Sequence[nn.Module],
    *,
    is_shared: bool,
    accumulate: int,
) -> None:
    """Refuses optimizers that train nothing of the models, and where the job `is_shared` by several
    workers (also a job of one that somebody joins) those that call the model themselves.
    """
    known = {id(parameter) for model in models for parameter in model.parameters()}
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            _check_lbfgs(is_shared=is_shared, accumulate=accumulate)
        if not any(id(parameter) in known for parameter in optimizer_parameters(optimizer)):
            raise UsageError(
                f"the {type(optimizer).__name__} optimizer trains no parameter of the given models: "
                "give prepare() the model that it was made for"
            )


def _check_lbfgs(*, is_shared: bool, accumulate: int) -> None:
    if is_shared:
        raise UnsupportedError(
            "LBFGS evaluates the loss several times per step, each worker on its own share, and would "
            "take different decisions on each: use a first-order optimizer, or train with one worker"
        )
    if accumulate > 1:
        raise UnsupportedError(
            "LBFGS needs the loss of the whole batch at each evaluation: leave out accumulate="
        )


def check_apart(prepared: Prepared, order: Order, *, is_elastic: bool) -> None:
    """Refuses what groups that train at their own pace cannot share."""
    reason = why_in_step(prepared, order, is_elastic=is_elastic)
    if prepared.sync.is_relaxed and reason:
        raise UnsupportedError(
            f"with sync={str(prepared.sync)!r} {reason}, or train with sync='full'"
        )


def check_served(prepared: Prepared, only_serve: Sequence[int]) -> None:
    """Refuses what parameter servers cannot update, and servers where there are none."""
    reason = why_unserved(prepared)
    if only_serve and prepared.sync.service is None:
        raise UsageError(
            f"--only-serve {','.join(map(str, only_serve))} is for parameter servers, and this job is "
            f"held together by {prepared.sync}: choose --sync asp, ssp(4), bsp or backup(1)"
        )
    if prepared.sync.service is None:
        return
    if reason:
        raise UnsupportedError(f"with sync={str(prepared.sync)!r}: {reason}")
    try:
        check_trial(prepared.optimizers[0], prepared.sync.service)
    except UnsupportedError as error:
        raise UnsupportedError(f"with sync={str(prepared.sync)!r}: {error}") from error


def why_unserved(prepared: Prepared) -> str:
    """Why parameter servers cannot make the updates; empty where they can."""
    if len(prepared.optimizers) != 1:
        return (
            f"parameter servers update with one optimizer, and there are {len(prepared.optimizers)}: "
            "put all parameters into one, with a parameter group for each kind of them"
        )
    try:
        check_shardable(prepared.optimizers[0])
    except UnsupportedError as error:
        return str(error)
    return ""


def check_pulled(options: Options, prepared: Prepared) -> None:
    """Refuses what cannot be where workers pull unequal numbers of parts of a global batch."""
    reason = ""
    if options.accumulate > 1:
        reason = "accumulate= makes parts of its own: leave it out, and give the grain of the parts"
    elif prepared.sync_batchnorm:
        reason = "sync_batchnorm=True normalises parts together, which each has others of"
    elif options.weight is not None:
        reason = "weight= needs the weight of the whole batch before the first part is computed"
    elif tables_of(prepared.models):
        reason = "a SampleState is carried from part to part in an order that nobody knows"
    if reason:
        raise UnsupportedError(
            f"where parts of a global batch are pulled, {reason}; or take allocation='balanced'"
        )


def why_in_step(prepared: Prepared, order: Order, *, is_elastic: bool) -> str:
    """Why groups cannot train at their own pace, and what to do about it; empty where they can."""
    if prepared.is_pulled:
        return (
            "no parts of a global batch can be pulled: groups at their own pace are lent parts of the "
            "epoch already. Take allocation='balanced'"
        )
    if not prepared.optimizers:
        return (
            "there must be an optimizer: what a loop keeps of its own for its updates cannot be "
            "merged between groups. Give prepare() an optimizer"
        )
    if tables_of(prepared.models):
        return (
            "a model cannot have a SampleState: every group would carry states of its own. Reset the "
            "state in every batch instead of carrying it"
        )
    if isinstance(order, DrawnOrder):
        return (
            f"the order of the samples cannot be {order.name}: every group would draw an order of "
            "its own, and samples would be used twice or not at all. Use shuffle=True or no sampler"
        )
    if not is_elastic:
        return "groups come together over the transport wire or wire-tcp: choose one of these"
    return ""


def check_loader(loader: DataLoader[object], *, may_be_empty: bool = False) -> None:
    """Refuses loaders whose batches cannot be cut exactly."""
    _check_subclass(loader)
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
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if any(isinstance(one, DistributedSampler) for one in (loader.batch_sampler, sampler)):
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
    if length == 0 and not may_be_empty:
        raise UsageError("the data set is empty: there is nothing to train on")


_HOOKS = frozenset(
    name
    for name, value in vars(DataLoader).items()
    if name not in ("__init__", "__module__", "__doc__")
    and (callable(value) or isinstance(value, property))
) | {"__getattribute__", "__getattr__"}
"""What makes a DataLoader's batches: who changes none of these changes the parts only."""


def _check_subclass(loader: DataLoader[object]) -> None:
    """Refuses a subclass that does more than choose the parts of which a DataLoader is made."""
    kinds = [kind for kind in type(loader).__mro__ if not issubclass(DataLoader, kind)]
    own = sorted({*vars(loader), *(name for kind in kinds for name in vars(kind))} & _HOOKS)
    if not own:
        return
    name = type(loader).__name__
    recipe = "move the subclass's work into the data set or collate_fn"
    if "__call__" in {name for kind in kinds for name in vars(kind)}:
        recipe = (
            "if it makes a batch from indices when it is called, as PyG's loaders do, prepare "
            "gangline.batches(length, global_batch=…) instead and call it in the loop: "
            "for index in batches: batch = loader(index)"
        )
    raise UnsupportedError(
        f"the loader is a {name}, which has its own {', '.join(own)}: it cannot be rebuilt for unequal "
        f"shares. To do: {recipe}"
    )
