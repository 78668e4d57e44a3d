# SPDX-License-Identifier: Apache-2.0
"""Carries out `prepare`: sorts and checks the objects, compares the workers, sets up the training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

import gangline
from gangline.emulation.pacing import pace
from gangline.planning.allocation import proportional
from gangline.runtime.handshake import Introduction, compare, copy_state, copy_tensors
from gangline.runtime.layout import Layout, build_layout
from gangline.runtime.loader import ShareLoader, ShareSampler, order_seed, rebuild
from gangline.runtime.order import Order, order_of
from gangline.runtime.refusals import check_loader, check_models, check_optimizers
from gangline.runtime.session import Session, device_of, now
from gangline.runtime.training import Prepared, Training
from gangline.spec import View
from gangline.spec.errors import UsageError
from gangline.spec.event import ViewAdopted, WorkerReady

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gangline.collectives import Group

REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked `prepare` for."""

    global_batch: int | None
    accumulate: int
    stateful: tuple[Any, ...]
    reduction: str
    weight: Callable[[Any], float] | None
    shares: tuple[float, ...] | None

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise UsageError(f"accumulate is a number of parts, at least 1, not {self.accumulate}")
        if self.reduction not in REDUCTIONS:
            raise UsageError(
                f"reduction must be one of {', '.join(REDUCTIONS)}, not {self.reduction!r}"
            )
        if self.weight is not None and self.reduction == "sum":
            raise UsageError(
                "a sum-reduced loss needs no weight: leave out weight=, or make the loss a mean"
            )
        for item in self.stateful:
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise UsageError(
                    f"stateful holds a {type(item).__name__}, which has no state_dict and "
                    "load_state_dict: give schedulers, scalers and other objects that have both"
                )


def set_up(
    session: Session, objects: Sequence[Any], options: Options
) -> tuple[Training, list[Any]]:
    """The training, and the user's objects with the loader replaced."""
    models = [item for item in objects if isinstance(item, nn.Module)]
    optimizers = [item for item in objects if isinstance(item, torch.optim.Optimizer)]
    loaders = [item for item in objects if isinstance(item, DataLoader)]
    _check_objects(objects, models, optimizers, loaders)
    (loader,) = loaders
    check_models(models)
    check_optimizers(optimizers, models)
    check_loader(loader)
    length = len(loader.dataset)  # type: ignore[arg-type]
    global_batch = loader.batch_size if options.global_batch is None else options.global_batch
    assert global_batch is not None  # check_loader refuses loaders without a batch size
    _check_batch(global_batch, session.group.size, length)
    prepared = Prepared(models=models, optimizers=optimizers, stateful=options.stateful)
    layout = build_layout(models, optimizers)
    order = _agree(session, prepared, layout, loader, options, global_batch)
    minimum = (
        2 if any(isinstance(m, _BatchNorm) for model in models for m in model.modules()) else 1
    )
    view = _first_view(session, options, global_batch, minimum)
    # Pacing comes first: its hooks must run before those that send the gradients.
    speed = session.place.speed
    pacer = pace(models, speed) if speed < 1 else None
    training = Training(session, prepared, layout, view=view, pacer=pacer)
    sampler = ShareSampler(
        order,
        training,
        global_batch=global_batch,
        num_micros=options.accumulate,
        drop_last=loader.drop_last,
        minimum=minimum,
    )
    shared = ShareLoader(
        rebuild(loader, sampler),
        sampler,
        training,
        reduction=options.reduction,
        weight=options.weight,
    )
    _announce(session, layout, view)
    return training, [shared if item is loader else item for item in objects]


def _check_objects(
    objects: Sequence[Any], models: Sequence[Any], optimizers: Sequence[Any], loaders: Sequence[Any]
) -> None:
    strange = [item for item in objects if item not in [*models, *optimizers, *loaders]]
    if strange:
        raise UsageError(
            f"prepare() was given a {type(strange[0]).__name__}: it takes models, optimizers and one "
            "DataLoader; schedulers, scalers and other state go into stateful=[…]"
        )
    if not models or not optimizers or len(loaders) != 1:
        raise UsageError(
            "prepare() needs at least one model, at least one optimizer and exactly one DataLoader; "
            f"it was given {len(models)}, {len(optimizers)} and {len(loaders)}. For evaluation data "
            "use gangline.evaluate(loader)"
        )


def _check_batch(global_batch: int, workers: int, length: int) -> None:
    if global_batch < 1:
        raise UsageError(f"global_batch must be at least 1, not {global_batch}")
    if global_batch < workers:
        raise UsageError(
            f"a global batch of {global_batch} cannot be shared by {workers} workers: give at least "
            f"global_batch={workers}, or start fewer workers"
        )
    if global_batch > length:
        raise UsageError(
            f"a global batch of {global_batch} is larger than the data set of {length} samples: "
            f"give at most global_batch={length}"
        )


def _agree(
    session: Session,
    prepared: Prepared,
    layout: Layout,
    loader: DataLoader[Any],
    options: Options,
    global_batch: int,
) -> Order:
    """Compares the workers, gives all of them worker 0's state, and agrees on the epochs' order."""
    communicator = session.communicator
    seed = torch.tensor([order_seed(loader)])
    length = len(loader.dataset)  # type: ignore[arg-type]
    order = order_of(loader.sampler, length=length, seed=0, run=communicator.call)
    introduction = Introduction(
        gangline_version=gangline.__version__,
        torch_version=torch.__version__.split("+")[0],
        data_set_length=length,
        global_batch=global_batch,
        accumulate=options.accumulate,
        drop_last=loader.drop_last,
        order=order.name,
        reduction=options.reduction,
        has_weight=options.weight is not None,
        parameters=layout.signature,
        buffers=tuple(
            f"{name} {tuple(buffer.shape)} {buffer.dtype}"
            for model in prepared.models
            for name, buffer in model.named_buffers()
        ),
        stateful=tuple(type(item).__name__ for item in options.stateful),
    )
    tensors = [slot.parameter for slot in layout.slots]
    buffers = [buffer for model in prepared.models for buffer in model.buffers()]

    def shake_hands(group: Group) -> None:
        compare(group, introduction)
        copy_tensors(group, [*tensors, *buffers])
        copy_state(group, [*prepared.optimizers, *prepared.stateful])
        group.broadcast(seed, 0)

    communicator.call(shake_hands)
    if session.group.rank > 0:  # equal seeds would give all workers the same dropout masks
        torch.manual_seed(torch.initial_seed() + session.group.rank)
    return order_of(loader.sampler, length=length, seed=int(seed), run=communicator.call)


def _first_view(session: Session, options: Options, global_batch: int, minimum: int) -> View:
    workers = session.group.size
    weights = options.shares or session.place.shares
    if weights is None:
        weights, reason = (1.0,) * workers, "equal shares: nothing is known of the workers' speeds"
    else:
        reason = "shares as given"
    if len(weights) != workers:
        raise UsageError(
            f"{len(weights)} shares were given for {workers} workers: give one share per worker"
        )
    if any(not math.isfinite(weight) or weight < 0 for weight in weights) or not sum(weights):
        raise UsageError(f"shares are numbers, none below 0 and not all 0: {list(weights)}")
    minimum = min(minimum, global_batch // workers)
    shares = proportional(global_batch, list(weights), minimum=minimum)
    return View(
        number=0,
        members=tuple(range(workers)),
        shares=tuple(int(share) for share in shares),
        reason=reason,
    )


def _announce(session: Session, layout: Layout, view: View) -> None:
    slots = layout.slots
    session.record(
        WorkerReady(
            t=now(),
            worker=session.place.worker,
            device=device_of(slots[0].parameter if slots else None),
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            parameters=layout.num_parameters,
            transport=session.group.transport,
        )
    )
    if session.group.rank == 0:
        session.record(
            ViewAdopted(
                t=now(),
                view=view.number,
                step=0,
                members=list(view.members),
                shares=list(view.shares),
                reason=view.reason,
            )
        )
