# SPDX-License-Identifier: Apache-2.0
"""The functions that a training script calls. One job per process: the state lives here."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gangline.paramserver.functional.company import provide
from gangline.spec.errors import UnsupportedError, UsageError
from gangline.spec.event import GoalSet
from gangline.spec.sync import parse_sync
from gangline.worker.checkpoint.writer import DEFAULT_EVERY, DEFAULT_KEEP, CheckpointOptions
from gangline.worker.colleagues import JobCompany
from gangline.worker.devices import own_device
from gangline.worker.ending import HAS_LEFT, explain_size, is_out_of_batches
from gangline.worker.gradients import backward
from gangline.worker.job import job as _job
from gangline.worker.memory import ending_error
from gangline.worker.prepare.preparation import Options, set_up
from gangline.worker.prepare.refusals import check_loader
from gangline.worker.samples.batches import index_loader
from gangline.worker.samples.loader import evaluation_loader
from gangline.worker.samples.loader_order import loader_order
from gangline.worker.samples.order import Company, DrawnOrder, ShuffledOrder
from gangline.worker.samples.sample_state import SampleState as SampleState
from gangline.worker.session import now, open_session
from gangline.worker.together import calls as together
from gangline.worker.together import saving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import torch
    from torch import Tensor
    from torch.utils.data import DataLoader

    from gangline.collectives import Group
    from gangline.spec.wire import WireSettings
    from gangline.worker.loop.training import Training

DEFAULT_TIMEOUT_S = 300.0


def init(
    *,
    transport: str | None = None,
    run_dir: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    wire: WireSettings | None = None,
) -> None:
    """Finds out how this process was launched, and connects it with the other workers.

    Under `gangline run` and `torchrun` it joins the job; in a plain `python train.py` it is a job of
    one. `transport` says what moves the gradients, `run_dir` where this worker writes its event log
    (`gangline run` sets both), `timeout_s` how long an exchange may wait for another worker, `wire`
    how our own transport works (ports, connections per link, checksums, TLS).
    Calling it again changes nothing.
    """
    if _job.session is None:
        _job.session = open_session(
            transport=transport, run_dir=run_dir, timeout_s=timeout_s, wire=wire
        )
        _job.session.watch_utilisation()
        provide(lambda: JobCompany(_job))
        saving.watch_saves()
        atexit.register(_end)


def prepare(
    *objects: Any,
    global_batch: int | None = None,
    accumulate: int = 1,
    stateful: Sequence[Any] = (),
    reduction: str = "mean",
    weight: Callable[[Any], float] | None = None,
    shares: Sequence[float] | None = None,
    allocation: str | None = None,
    max_share: int | None = None,
    min_share: int | None = None,
    sync_batchnorm: bool = False,
    checkpoint: str | Path | None = None,
    every: int = DEFAULT_EVERY,
    keep: int = DEFAULT_KEEP,
    resume: bool | None = None,
    sync: str | None = None,
    non_finite: str | None = None,
    data: str | None = None,
) -> Any:
    """Makes models, optimizers and a DataLoader take part in the job; returns them in the same order.

    Models and optimizers stay the objects they are. The loader is replaced by one that hands out this
    worker's share of every global batch.

    - `global_batch`: samples per optimizer update over all workers (default: the loader's batch size).
    - `accumulate`: hand the global batch out in this many parts. The gradient is that of the mean over
      the whole global batch; do not divide the loss. Step when `gangline.is_update()` says so.
    - `stateful`: other objects with a state_dict (schedulers, GradScaler), kept equal on all workers.
    - `reduction`: "mean" if the loss is a mean over the batch, "sum" if it is a sum.
    - `weight`: how much a batch counts, where that is not its number of samples: a function of the
      batch, e.g. `lambda batch: batch["mask"].sum()` for a loss that is a mean over tokens.
    - `shares`: each worker's part of the global batch, in any unit, for the whole run.
    - `allocation`: who gets how much where no shares are given: "balanced" (the default) follows the
      measured speeds; "equal", "random", "kqv" and "kqv-normalised" are there to compare with. With
      "self-scheduled" and "balanced+stolen" workers pull parts of each global batch, one per turn.
    - `max_share`: the most samples that this worker's memory can hold at once.
    - `min_share`: the fewest samples that an allocation gives a worker. Default: 1; with BatchNorm that
      is not synchronised, 8 in each forward pass, as far as the global batch goes.
    - `sync_batchnorm`: BatchNorm layers normalise by the samples of all workers, so that the result is
      that of one process with any shares. Default: each worker normalises by its own.
    - `checkpoint`: a folder in which rank 0 keeps the whole state, in the background, after every
      `every` steps; the newest `keep` stay.
    - `resume`: go on from the newest good checkpoint in that folder, if there is one (default: what
      `gangline run --resume` says).
    - `sync`: how tightly groups of workers are held together: "full" (the default, exact), "none",
      "percentage(0.25)", "local(16)", "local(16, strict)" or "flexible". Default: what
      `gangline run --sync` says.
    - `non_finite`: what to do where a worker's gradient is infinite, not a number, or out of all
      proportion: "keep" sums it, as one process would (and a GradScaler expects); "evict" ends that
      worker with a GradientError, and the others do the batch without it. Either way an event names
      the worker. Default: what `gangline run --non-finite` says, or else "keep".
    - `data`: "shared" if all workers read the same data set, "worker" if each worker's loader has its
      own, which nobody else can read. Then an epoch is one pass of every worker over its own data, in
      batches of its own loader's size, and a `sync` other than "full" is needed. Default: what
      `gangline run --data` says, or else "shared".
    """
    session = _job.opened()
    if _job.training is not None:
        raise UsageError(
            "prepare() was called twice: give all models, optimizers and the loader to one call, "
            "e.g. gangline.prepare(generator, discriminator, opt_g, opt_d, loader)"
        )
    options = Options(
        global_batch=global_batch,
        accumulate=accumulate,
        stateful=tuple(stateful),
        reduction=reduction,
        weight=weight,
        shares=None if shares is None else tuple(shares),
        allocation=allocation,
        max_share=max_share,
        min_share=min_share,
        sync_batchnorm=sync_batchnorm,
        checkpoint=None
        if checkpoint is None
        else CheckpointOptions(folder=Path(checkpoint), every=every, keep=keep),
        resume=resume,
        sync=None if sync is None else parse_sync(sync),
        non_finite=non_finite,
        data=data,
    )
    training, prepared = set_up(session, objects, options)
    _job.training = training
    backward.listen(training.passes)
    return prepared[0] if len(prepared) == 1 else tuple(prepared)


def rank() -> int:
    """This worker's rank: 0 … world_size() - 1, in the order of the workers' numbers.

    So who was put out for a while has its old rank when it comes back. On a worker that has left the
    job it is `world_size()`, which is nobody's rank; also while one that comes back is still in an
    epoch that the others have ended.
    """
    return _job.rank


def world_size() -> int:
    """How many workers the job has; on one that has left it, how many went on without it."""
    training = _job.training
    return _job.opened().group.size if training is None else training.num_workers


def is_main() -> bool:
    """Whether this is the one worker that should print and save."""
    return rank() == 0


def device() -> torch.device:
    """What this worker computes on: its GPU, where it has one, else the CPU. Also before `init`.

    device = gangline.device()
    model = Net().to(device)
    """
    return own_device(os.environ)


def is_update() -> bool:
    """Whether the present batch completes the global batch, so that the optimizer should step.

    Always true without accumulation. Where parts are pulled (`allocation="self-scheduled"`), the
    coordinator is asked whether there is another part, which takes a round trip.
    """
    return _job.training is None or _job.training.is_update


def epochs(count: int) -> Iterator[int]:
    """The epochs that are still to do, 0 … count - 1."""
    training = _job.training
    if training is not None:
        training.epochs.settle()
        training.session.record(
            GoalSet(t=now(), worker=training.session.place.worker, epochs=count)
        )
    epoch = 0 if training is None else training.epoch
    while epoch < count:
        if training is not None:
            training.skip_to_epoch(epoch)
        yield epoch
        if training is None:
            epoch += 1
            continue
        training.epochs.settle()
        if training.has_left:
            return
        if not training.epochs.take_rest():  # else somebody was lost at the very end of the epoch
            epoch = max(epoch + 1, training.epoch)
    if training is not None:
        training.progress.is_through = True


def steps(count: int) -> Iterator[int]:
    """The optimizer updates that are still to do, 0 … count - 1, for loops that know no epochs.

        for step in gangline.steps(1000):
            ...                     # fetch, forward, backward and optimizer.step()

    A loop that counts by itself may count wrong: a step that failed because a worker was lost is
    done again, and a job that was resumed begins later. The loop must fetch its batches itself.
    """
    training = _job.training
    if training is None:
        yield from range(count)
        return
    training.progress.is_through = False
    training.session.record(GoalSet(t=now(), worker=training.session.place.worker, steps=count))
    while training.num_steps < count and not training.has_left:
        yield training.num_steps
    training.epochs.settle()
    training.progress.is_through = True


def log(**values: float | torch.Tensor) -> None:
    """Notes numbers of the present batch, such as its loss, for the report and for other tools.

        loss.backward()
        optimizer.step()
        gangline.log(loss=loss, accuracy=(output.argmax(1) == y).float().mean())

    Each is a number or a tensor with one number, a mean over this worker's samples of the batch. Over
    workers, and over the parts of an accumulation window, they are averaged by samples. A name that is
    given again in the same batch is overwritten. Between epochs every worker counts alike: bring an
    evaluation together with `mean` first. Costs no wait for a GPU.
    """
    _job.opened()
    if _job.training is None:
        raise UsageError(
            "gangline.log() was called before prepare(): there is no step to log it for"
        )
    _job.training.log(values)


def no_sync() -> AbstractContextManager[None]:
    """A context whose backward passes add up locally, for loops that count their own windows."""
    training = _job.training
    if training is None:
        return nullcontext()
    context: AbstractContextManager[None] = training.no_sync()
    return context


def evaluate(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader over this worker's part of an evaluation data set, by the shares of training."""
    session = _job.opened()
    indices = evaluation_order(loader)
    if is_whole(loader):
        return loader
    if _job.training is None:
        shares, own_rank = (1,) * session.group.size, session.group.rank
    else:
        view, own_rank = _job.training.gear.view_now()
        shares = view.shares
        is_member = own_rank < len(shares)
        if view.whole is not None:  # the other teams' parts are before this one's, and behind it
            after = view.whole.samples - view.whole.first_sample - sum(shares)
            shares, own_rank = (view.whole.first_sample, *shares, max(0, after)), own_rank + 1
        own_rank = own_rank if is_member else len(shares)  # who has left has no part
    return evaluation_loader(loader, indices, shares=shares, rank=own_rank)


def is_whole(loader: DataLoader[Any]) -> bool:
    """Whether all of an evaluation is this worker's, as its loader has it."""
    return _job.opened().client is None and not loader.drop_last


def evaluation_order(loader: DataLoader[Any]) -> Sequence[int]:
    """The samples of an evaluation, in the order that all workers have agreed on, when all are here."""
    check_loader(loader)
    order = loader_order(loader, seed=0)
    if _job.whole is not None and isinstance(order, DrawnOrder):
        raise UnsupportedError(
            f"the evaluation's order is {order.name}: where groups train at their own pace, every "
            "group would draw an order of its own. Leave out the sampler, or choose the samples by "
            "torch.utils.data.Subset"
        )
    together.meet(f"gangline.evaluate({order.length} samples)")
    # In a shuffled evaluation nothing depends on the order, so none needs to be agreed.
    if isinstance(order, ShuffledOrder) or is_whole(loader):
        return range(order.length)
    return cast("Sequence[int]", order.indices(0, _agree_on_order, Company.TOGETHER))


def batches(
    length: int,
    *,
    global_batch: int,
    shuffle: bool = False,
    sampler: Iterable[int] | None = None,
    generator: torch.Generator | None = None,
    drop_last: bool = False,
) -> DataLoader[list[int]]:
    """A loader whose batches are lists of indices, for loops that have no DataLoader of their own.

    Give it to `prepare` as any other loader, and index the data by what it hands out:

        loader = gangline.batches(len(x), global_batch=64, shuffle=True)
        model, optimizer, loader = gangline.prepare(model, optimizer, loader)
        for index in loader:
            loss = F.mse_loss(model(x[index]), y[index])

    `shuffle`, `sampler`, `generator` and `drop_last` are those of a DataLoader, which it is: without
    `prepare` it hands out whole batches.
    """
    return index_loader(
        length,
        global_batch=global_batch,
        shuffle=shuffle,
        sampler=sampler,
        generator=generator,
        drop_last=drop_last,
    )


def _agree_on_order(exchange: Callable[[Group], Tensor], key: tuple[str, int]) -> Tensor:
    """An evaluation's order is drawn anew each time, as a loader does it; nothing is remembered."""
    training = _job.training
    if training is None:
        return _job.opened().communicator.call(exchange)
    return training.calls.make(exchange, what="the order of an evaluation")


def shutdown() -> None:
    """Leaves the job: the models, optimizers and torch are as they were before `init`."""
    training, session = _job.training, _job.session
    try:
        saving.stop_watching_saves()  # may warn, which some make an error
    finally:
        _job.training = _job.session = _job.turn = None
        backward.stop_listening()
        try:
            if training is not None and ending_error() is None:
                training.finish()  # where the script has called this itself
        finally:
            if training is not None:
                training.close()
            if session is not None:
                session.say_goodbye(training)
                session.close()
            atexit.unregister(_end)


def end_task() -> None:
    """As at the end of a script, in a process that goes on. Raises what is wrong with such an end."""
    error = None if _job.training is None else _find_loss(_job.training)
    shutdown()
    if error is not None:
        raise error


def _find_loss(training: Training) -> Exception | None:
    """Finishes a loop that has ended well; why its end loses a step, if so."""
    try:
        training.finish()
        return training.find_loss()
    except Exception as failure:
        return failure


def _end() -> None:
    """The script has ended. An end that loses a step is none that may pass for a good one."""
    training, error = _job.training, None
    has_run_out = training is not None and training.has_left and is_out_of_batches(ending_error())
    note = HAS_LEFT if has_run_out else ""
    if training is not None and not has_run_out:
        note = explain_size(ending_error(), training)
    if training is not None and ending_error() is None:
        error = _find_loss(training)
    shutdown()
    sys.stderr.write(note)
    if error is not None:
        traceback.print_exception(error)
    if error is not None or has_run_out:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if has_run_out else 1)  # an exception at this point would not change it
