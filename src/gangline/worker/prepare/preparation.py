# SPDX-License-Identifier: Apache-2.0
"""Carries out `prepare`: sorts and checks the objects, compares the workers, sets up the training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gangline.control.shares.pulling import check_any_allocation, parse_pulling
from gangline.emulation.pacing import Pacer, pace
from gangline.protocol.messages import Ready
from gangline.spec import View
from gangline.spec.config import OWN, check_data, check_non_finite
from gangline.spec.errors import ExchangeError, LaunchError, UnsupportedError, UsageError
from gangline.spec.event import Decision, WorkerReady
from gangline.version import VERSION
from gangline.worker.checkpoint.files import CheckpointFolder
from gangline.worker.checkpoint.resuming import Source, Start, agree_on_start
from gangline.worker.checkpoint.writer import Checkpointer, CheckpointOptions
from gangline.worker.checks.foreign import check_unwrapped
from gangline.worker.checks.reduction import ReductionCheck
from gangline.worker.faults import Faults
from gangline.worker.gradients.layout import Layout, build_layout
from gangline.worker.groups.refounding import Refounding
from gangline.worker.groups.views import ViewSchedule
from gangline.worker.instruments import Instruments
from gangline.worker.loop.training import Training
from gangline.worker.normalisation.batch_statistics import Normalisation, ShareWatch
from gangline.worker.normalisation.sync_batchnorm import batch_norms, check_synchronisable
from gangline.worker.prepare.handshake import (
    Introduction,
    Wishes,
    compare,
    copy_state,
    copy_tensors,
)
from gangline.worker.prepare.likeness import sample_digest
from gangline.worker.prepare.objects import sort_objects
from gangline.worker.prepare.ownership import check_owned, estate, told_by_owner
from gangline.worker.prepare.prepared import Prepared
from gangline.worker.prepare.refusals import (
    check_apart,
    check_loader,
    check_models,
    check_optimizers,
    check_pulled,
    check_served,
    why_in_step,
    why_unserved,
)
from gangline.worker.prepare.selfprobe import ProbeSchedule, tell_workload
from gangline.worker.prepare.serving_need import tell_room
from gangline.worker.prepare.weighing import LEAST_BYTES, expect_exchange_s
from gangline.worker.samples.drawn_batches import DrawnBatches
from gangline.worker.samples.loader import ShareLoader, ShareSampler, rebuild
from gangline.worker.samples.loader_order import (
    Batching,
    batching_of,
    check_batching,
    generators_of,
    loader_order,
)
from gangline.worker.samples.order import order_seed
from gangline.worker.samples.owned import Holding, Holdings, OwnOrder, gather_holdings
from gangline.worker.samples.pulling import Pulls
from gangline.worker.session import Session, now
from gangline.worker.telling.metrics import MetricsProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.utils.data import DataLoader

    from gangline.collectives import Group
    from gangline.spec.config import ChecksConfig
    from gangline.spec.sync import Sync
    from gangline.worker.samples.order import Order

REDUCTIONS = ("mean", "sum")
DEFAULT_ALLOCATION = "balanced"
_VIEW_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked `prepare` for."""

    global_batch: int | None
    accumulate: int
    stateful: tuple[Any, ...]
    reduction: str
    weight: Callable[[Any], float] | None
    shares: tuple[float, ...] | None
    allocation: str | None
    max_share: int | None
    min_share: int | None = None
    sync_batchnorm: bool = False
    checkpoint: CheckpointOptions | None = None
    resume: bool | None = None
    non_finite: str | None = None
    sync: Sync | None = None
    data: str | None = None

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise UsageError(f"accumulate is a number of parts, at least 1, not {self.accumulate}")
        if self.reduction not in REDUCTIONS:
            raise UsageError(
                f"reduction must be one of {', '.join(REDUCTIONS)}, not {self.reduction!r}"
            )
        if self.non_finite is not None:
            check_non_finite(self.non_finite, name="non_finite")
        if self.data is not None:
            check_data(self.data, name="data")
        if self.weight is not None and self.reduction == "sum":
            raise UsageError(
                "a sum-reduced loss needs no weight: leave out weight=, or make the loss a mean"
            )
        if self.allocation is not None:
            check_any_allocation(self.allocation)
        if self.max_share is not None and self.max_share < 1:
            raise UsageError(f"max_share is a number of samples, at least 1, not {self.max_share}")
        if self.min_share is not None:
            if self.min_share < 1:
                raise UsageError(f"min_share is at least 1 sample, not {self.min_share}")
            if self.max_share is not None and self.max_share < self.min_share:
                raise UsageError(
                    f"max_share={self.max_share} is below min_share={self.min_share}: a worker cannot "
                    "have fewer samples than the least share"
                )
        for item in self.stateful:
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise UsageError(
                    f"stateful holds a {type(item).__name__}, which has no state_dict and "
                    "load_state_dict: give schedulers, scalers and other objects that have both"
                )


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `prepare` was asked to train, checked."""

    prepared: Prepared
    loader: DataLoader[Any]
    options: Options
    batching: Batching
    global_batch: int
    """Samples per update; about, where the loader's batches have sizes of their own."""
    normalisation: Normalisation
    least_share: int
    """What an allocation gives at least to whoever takes part."""
    allocation: str
    shares: tuple[float, ...] | None
    is_owned: bool = False
    """Whether each worker has its own data."""
    holdings: Holdings | None = None
    """What all founders have of their own, where it `is_owned` and they have told each other."""

    @property
    def order(self) -> Order:
        """The epochs' order, but for its seed."""
        return loader_order(self.loader, seed=0)

    @property
    def holding(self) -> Holding:
        """What this worker has of its own."""
        batching = self.batching
        rest = batching.length % batching.batch_size if batching.drop_last else 0
        return Holding(batching.length - rest, batching.batch_size)

    def holding_of_all(self, holdings: Holdings) -> Request:
        """The same, where the founders have told each other what they have."""
        return replace(
            self,
            holdings=holdings,
            global_batch=holdings.global_batch,
            shares=tuple(float(one.batch) for one in holdings.parts),
        )


def set_up(
    session: Session, objects: Sequence[Any], options: Options
) -> tuple[Training, list[Any]]:
    """The training, and the user's objects with the loader replaced."""
    request = _check(session, objects, options)
    is_elastic = session.client is None or session.client.is_elastic
    check_apart(request.prepared, request.order, is_elastic=is_elastic)
    check_served(request.prepared, session.place.config.exchange.only_serve)
    layout = build_layout(request.prepared.models, request.prepared.optimizers)
    if session.group.size > 1 or session.is_late:
        check_unwrapped(layout.slots)
    introduction = _introduce(request, layout, session.place.config.checks)
    # Pacing comes first: its hooks must run before those that send the gradients.
    instruments = Instruments(
        pacer=_pace(request.prepared.models, session.place.speed),
        probe=MetricsProbe() if request.allocation.startswith("kqv") else None,
        faults=Faults(session.place.faults, record=session.record, line=session.client),
        reduction=_reduction_check(request),
    )
    view, seed, start, request = _take_part(session, request, layout, introduction)
    if request.is_owned:
        introduction = told_by_owner(introduction, request.holdings)
    if options.checkpoint is not None:
        checkpointer = Checkpointer(
            options.checkpoint,
            session=session,
            prepared=request.prepared,
            introduction=introduction,
            seed=seed,
            first_step=_first_step(start),
        )
        instruments = instruments._replace(checkpointer=checkpointer)
    pulls = _pulls(session, request)
    instruments = instruments._replace(pulls=pulls)
    training = Training(
        session,
        request.prepared,
        layout,
        introduction=introduction,
        views=_schedule(session, request, view),
        instruments=instruments._replace(shares=ShareWatch(session, request.normalisation)),
        refounding=_refounding(session, request, introduction),
    )
    _begin(session, training, view, start)
    _announce(session, request, layout)
    shared = _share(request, training, seed)
    return training, [shared if item is request.loader else item for item in objects]


def _pulls(session: Session, request: Request) -> Pulls | None:
    """Who asks for parts of global batches, if the coordinator says that they are pulled.

    Who comes late goes by what the founders have asked for.
    """
    pulling = None if session.client is None else parse_pulling(session.client.pulled)
    if pulling is None:
        return None
    check_pulled(request.options, request.prepared)
    assert session.client is not None
    return Pulls(session.client, pulling, minimum=request.normalisation.fewest)


def _refounding(session: Session, request: Request, introduction: Introduction) -> Refounding:
    """What newcomers do when all that had the state of the job are lost."""
    plan = request.options.checkpoint
    folder = None if plan is None else CheckpointFolder(plan.folder)
    refounding = Refounding(folder, request.prepared, introduction)
    refounding.tell = lambda start: _tell_start(session, start)
    return refounding


def _schedule(session: Session, request: Request, view: View) -> ViewSchedule:
    steps = session.place.probe_steps
    if not steps:
        return ViewSchedule(view, session.client)
    size = _gradient_bytes(request.prepared.models)
    session.record(tell_workload(global_batch=request.global_batch, gradient_bytes=size, t=now()))
    return ProbeSchedule(view, steps=steps, minimum=request.normalisation.fewest)


def _begin(session: Session, training: Training, view: View, start: Start | None) -> None:
    """Takes the place in the job from which the loop goes on."""
    if start is not None:
        training.recovery.resume(start)
    if session.is_late or view.whole is not None:
        training.recovery.join(view, is_founder=not session.is_late)
    elif session.group.rank == 0:
        training.recovery.record_view(training.views.latest)
        _tell_start(session, start)
    if session.group.rank > 0:  # equal seeds would give all workers the same dropout masks
        torch.manual_seed(torch.initial_seed() + session.place.worker + _first_step(start))


def _first_step(start: Start | None) -> int:
    return 0 if start is None else start.position.step


def _check(session: Session, objects: Sequence[Any], options: Options) -> Request:
    models, optimizers, loader = sort_objects(objects)
    check_models(models, sync_batchnorm=options.sync_batchnorm)
    check_optimizers(
        optimizers,
        models,
        is_shared=session.group.size > 1 or session.is_late,
        accumulate=options.accumulate,
    )
    config = session.place.config
    is_owned = (options.data or config.batch.data) == OWN and session.client is not None
    check_loader(loader, may_be_empty=is_owned)
    batching = batching_of(loader)
    check_batching(
        batching,
        loader.batch_sampler,
        global_batch=options.global_batch,
        max_share=options.max_share,
    )
    global_batch = batching.batch_size if options.global_batch is None else options.global_batch
    sync = options.sync or config.exchange.how_tight
    if is_owned:
        check_owned(options, config, batching, sync, is_late=session.is_late)
    else:
        _check_batch(global_batch, session.group.size, batching.length)
    shares = options.shares or session.place.config.batch.shares
    if shares is not None and not session.is_late:
        _check_shares(shares, session.group.size)
    normalisation = _normalisation(models, options)
    allocation = options.allocation or session.place.config.batch.allocation or DEFAULT_ALLOCATION
    is_pulled = shares is None and parse_pulling(allocation) is not None
    evicts_wrong = (options.non_finite or session.place.config.survival.non_finite) == "evict"
    if evicts_wrong and options.sync_batchnorm and normalisation.num_layers:
        raise UnsupportedError(
            'non_finite="evict" cannot go with sync_batchnorm=True: a value that is not finite reaches '
            'all workers by the statistics, and the gradients do not show whose it was. Use "keep"'
        )
    prepared = Prepared(
        models=models,
        optimizers=optimizers,
        stateful=options.stateful,
        generators=generators_of(loader),
        sync=sync,
        sync_batchnorm=options.sync_batchnorm and normalisation.num_layers > 0,
        evicts_wrong=evicts_wrong,
        is_sum=options.reduction == "sum",
        is_pulled=is_pulled,
    )
    if is_pulled and session.client is not None:
        check_pulled(options, prepared)
    return Request(
        prepared=prepared,
        loader=loader,
        options=options,
        batching=batching,
        global_batch=global_batch,
        normalisation=normalisation,
        least_share=1
        if is_owned
        else _least_share(session, options, normalisation, global_batch, shares is not None),
        allocation=allocation,
        shares=shares,
        is_owned=is_owned,
    )


def _share(request: Request, training: Training, seed: int) -> ShareLoader:
    """The loader that hands out this worker's share."""
    loader = request.loader
    order = loader_order(loader, seed=seed)
    sampler = ShareSampler(
        order if request.holdings is None else OwnOrder(order, request.holdings),
        training.cutting,
        global_batch=request.global_batch,
        num_micros=request.options.accumulate,
        drop_last=request.batching.drop_last and not request.is_owned,
        minimum=request.normalisation.fewest,
    )
    return ShareLoader(
        rebuild(loader, sampler),
        sampler,
        training.epochs,
        reduction=request.options.reduction,
        weight=request.options.weight,
    )


def _reduction_check(request: Request) -> ReductionCheck | None:
    if request.options.weight is not None:  # what a batch counts may be anything
        return None
    if request.prepared.is_pulled:  # nobody knows the others' shares beforehand
        return None
    return ReductionCheck(
        request.options.reduction,
        models=request.prepared.models,
        minimum=request.normalisation.fewest,
        order=request.order.name,
    )


def _pace(models: Sequence[nn.Module], speed: float) -> Pacer | None:
    if speed >= 1:
        return None
    if any(parameter.is_cuda for model in models for parameter in model.parameters()):
        raise UnsupportedError(
            f"a speed of {speed:g} cannot be emulated on a GPU, whose work takes no CPU time: leave "
            "out --speeds, or limit the GPU itself (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)"
        )
    return pace(models, speed)


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


def _normalisation(models: Sequence[nn.Module], options: Options) -> Normalisation:
    layers = batch_norms(models)
    if options.sync_batchnorm:
        check_synchronisable(layers)
    return Normalisation(
        name=" and ".join(dict.fromkeys(type(model).__name__ for model in models)),
        num_layers=len(layers),
        is_synchronised=options.sync_batchnorm,
        num_micros=options.accumulate,
    )


def _least_share(
    session: Session,
    options: Options,
    normalisation: Normalisation,
    global_batch: int,
    has_shares: bool,
) -> int:
    """What the founders agree on. Who comes late takes part by their least share, not by its own."""
    if options.max_share == 1 and normalisation.is_local:
        raise UsageError(
            "max_share=1 leaves this worker a single sample, which BatchNorm cannot normalise: give at "
            "least max_share=2, or sync_batchnorm=True"
        )
    return normalisation.least_share(
        options.min_share,
        global_batch=global_batch,
        workers=1 if session.is_late else session.group.size,
        has_shares=has_shares,
    )


def _introduce(request: Request, layout: Layout, checks: ChecksConfig) -> Introduction:
    options = request.options
    torch_version = "" if checks.allow_differences else torch.__version__.split("+")[0]
    count = 0 if request.is_owned else checks.samples
    samples = sample_digest(request.loader.dataset, request.batching.length, count)
    introduction = Introduction(
        gangline_version=VERSION,
        torch_version=torch_version,
        data_set_length=request.batching.length,
        global_batch=request.global_batch,
        accumulate=options.accumulate,
        drop_last=request.batching.drop_last,
        order=request.order.name,
        samples_per_epoch=request.order.length,
        reduction=options.reduction,
        has_weight=options.weight is not None,
        parameters=layout.signature,
        buffers=tuple(
            f"{name} {tuple(buffer.shape)} {buffer.dtype}"
            for model in request.prepared.models
            for name, buffer in model.named_buffers()
        ),
        optimizers=tuple(type(item).__name__ for item in request.prepared.optimizers),
        shares=options.shares,
        min_share=options.min_share,
        sync_batchnorm=options.sync_batchnorm,
        stateful=tuple(type(item).__name__ for item in options.stateful),
        data_set_samples=samples,
    )
    return told_by_owner(introduction, None) if request.is_owned else introduction


def _take_part(
    session: Session, request: Request, layout: Layout, introduction: Introduction
) -> tuple[View, int, Start | None, Request]:
    """The first view with this worker in it, the seed of the order, where a founder starts, and
    what it is asked for where the founders have told each other what they have.
    """
    seed = order_seed(request.loader.generator)
    while not session.is_late:
        try:
            request = _tell_holdings(session, request, introduction)
            if request.is_owned:
                introduction = told_by_owner(introduction, request.holdings)
            seed, start = _become_founder(session, request, layout, introduction, seed)
            return *_first_view(session, request, introduction, seed), start, request
        except ExchangeError as error:
            session.found_again(error)
    return *_first_view(session, request, introduction, seed), None, request


def _tell_holdings(session: Session, request: Request, introduction: Introduction) -> Request:
    """Where each worker has its own data: how much all of them have."""
    if not request.is_owned:
        return request
    own = request.holding
    if session.place.worker in session.place.config.exchange.only_serve:
        own = own._replace(samples=0)

    def tell(group: Group) -> Holdings:
        compare(group, introduction)  # first: others may not have such data
        return gather_holdings(group, own)

    return request.holding_of_all(session.communicator.call(tell))


def _become_founder(
    session: Session, request: Request, layout: Layout, introduction: Introduction, seed: int
) -> tuple[int, Start | None]:
    """Compares the founders and gives them worker 0's state, which may be that of a checkpoint.

    Returns the seed of the order, and where to start if not at the beginning.
    """
    prepared = request.prepared
    tensors = [slot.parameter for slot in layout.slots]
    buffers = [buffer for model in prepared.models for buffer in model.buffers()]
    source = _checkpoints(session, request.options)
    wishes = Wishes(
        allocation=request.allocation,
        shares=request.shares,
        sync=str(prepared.sync),
        structure=str(session.place.config.exchange.tree),
    )
    agreed = torch.tensor([seed])

    def shake_hands(group: Group) -> Start | None:
        compare(group, introduction)
        compare(group, wishes)
        start = agree_on_start(group, source, prepared, introduction=introduction)
        copy_tensors(group, [*tensors, *buffers])
        copy_state(group, [*prepared.optimizers, *prepared.stateful])
        group.broadcast(agreed, 0)
        session.exchange_s = _probe_links(group, session, request)
        return start

    start = session.communicator.call(shake_hands)
    if start is not None and start.position.start and prepared.sync.is_relaxed:
        raise UsageError(
            f"the checkpoint {start.source} was taken after {start.position.start} samples of an "
            f"epoch, and with sync={str(prepared.sync)!r} a job goes on from the end of one only: "
            "resume it with sync='full'"
        )
    return int(agreed) if start is None else start.seed, start


def _checkpoints(session: Session, options: Options) -> Source | None:
    is_resuming = (
        session.place.config.checkpoint.resume if options.resume is None else options.resume
    )
    if options.checkpoint is not None:
        return Source(CheckpointFolder(options.checkpoint.folder), is_resuming)
    if is_resuming:
        raise UsageError(
            "there is no checkpoint folder to resume from: call prepare(…, checkpoint=FOLDER), or "
            "leave out --resume and resume=True"
        )
    return None


def _tell_start(session: Session, start: Start | None) -> None:
    if start is None:
        return
    for reason in start.skipped:
        session.record(Decision(t=now(), what="checkpoint_damaged", reason=reason, numbers={}))
    position = start.position
    session.record(
        Decision(
            t=now(),
            what="resumed",
            reason=f"goes on from {start.source}: the last good checkpoint",
            numbers={"step": position.step, "epoch": position.epoch, "start": position.start},
        )
    )


def _probe_links(group: Group, session: Session, request: Request) -> float:
    """How long the founders will exchange; 0 where that is short, or nobody would be left out.

    What decides this is the same on all of them.
    """
    config, num_bytes = session.place.config, _gradient_bytes(request.prepared.models)
    is_near = group.size == 1 or group.transport == "wire (shared memory)"
    is_settled = config.manager.everybody or request.allocation != "balanced"
    is_other = request.prepared.sync.is_relaxed or bool(config.exchange.compress)
    if is_near or is_settled or is_other or num_bytes < LEAST_BYTES:
        return 0.0
    return expect_exchange_s(group, num_bytes)


def _first_view(
    session: Session, request: Request, introduction: Introduction, seed: int
) -> tuple[View, int]:
    """The first view with this worker in it, and the seed of the job's order."""
    client = session.client
    if client is None:
        view = View(
            number=0, members=(0,), shares=(request.global_batch,), reason="the only worker"
        )
        return view, seed
    client.send(
        Ready(
            global_batch=request.global_batch,
            minimum=request.least_share,
            allocation=request.allocation,
            shares=request.shares,
            max_samples=request.options.max_share,
            seed=seed,
            attempt=session.gathering,
            structure=session.place.config.exchange.tree,
            sync=request.prepared.sync,
            must_stay=why_in_step(request.prepared, request.order, is_elastic=client.is_elastic),
            must_update=why_unserved(request.prepared),
            only_serves=_is_idle(session, request),
            owns=estate(request.holdings),
            **tell_room(request.prepared),
            traits=introduction.traits(),
            gradient_bytes=_gradient_bytes(request.prepared.models),
            keeps_checkpoints=request.options.checkpoint is not None,
        )
    )
    found = client.wait_group(
        -1,
        worker=session.place.worker,
        timeout_s=_VIEW_WAIT_S,
        gathering=None if session.is_late else session.gathering,
    )
    if found is None:
        raise LaunchError("this worker was asked to leave before it could take part")
    return found, client.seed


def _is_idle(session: Session, request: Request) -> bool:
    """Whether this worker computes nothing: it only serves, or has no samples of its own."""
    is_without = request.holdings is not None and request.holdings.own.samples == 0
    return is_without or session.place.worker in session.place.config.exchange.only_serve


def _gradient_bytes(models: Sequence[nn.Module]) -> int:
    """What a step exchanges, as far as parameters are trained now; one that is shared counts once."""
    trained = {p for model in models for p in model.parameters() if p.requires_grad}
    return sum(parameter.numel() * parameter.itemsize for parameter in trained)


def _check_shares(shares: Sequence[float], workers: int) -> None:
    if len(shares) != workers:
        raise UsageError(
            f"{len(shares)} shares were given for {workers} workers: give one share per worker"
        )
    if any(not math.isfinite(share) or share <= 0 for share in shares):
        raise UsageError(f"shares are numbers above 0, in any unit: {list(shares)}")


def _announce(session: Session, request: Request, layout: Layout) -> None:
    slots = layout.slots
    session.record(
        WorkerReady(
            t=now(),
            worker=session.place.worker,
            device=str(slots[0].parameter.device) if slots else "none",
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            parameters=layout.num_parameters,
            transport=session.group.transport,
            samples_per_epoch=_samples_per_epoch(request),
            owns=estate(request.holdings) or (0, 0),
        )
    )


def _samples_per_epoch(request: Request) -> int:
    """0 where batches of the script's own may have any size."""
    if request.holdings is not None:
        return request.holdings.total
    return 0 if isinstance(request.order, DrawnBatches) else request.order.length
