# SPDX-License-Identifier: Apache-2.0
"""The functions that a training script calls. One job per process: the state lives here."""

from __future__ import annotations

import atexit
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from gangline.runtime import backward
from gangline.runtime.checkpoint import DEFAULT_EVERY, DEFAULT_KEEP, CheckpointOptions
from gangline.runtime.leaving import farewell
from gangline.runtime.loader import evaluation_loader
from gangline.runtime.order import DrawnOrder, ShuffledOrder, order_of
from gangline.runtime.preparation import Options, set_up
from gangline.runtime.refusals import check_loader
from gangline.runtime.session import Session, open_session
from gangline.spec.errors import UnsupportedError, UsageError
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.utils.data import DataLoader

    from gangline.collectives import Group
    from gangline.runtime.training import Training
    from gangline.spec.view import Whole
    from gangline.spec.wire import WireSettings

DEFAULT_TIMEOUT_S = 300.0


@dataclass(slots=True)
class _Job:
    session: Session | None = None
    training: Training | None = None


_job = _Job()


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
        atexit.register(shutdown)


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
    checkpoint: str | Path | None = None,
    every: int = DEFAULT_EVERY,
    keep: int = DEFAULT_KEEP,
    resume: bool | None = None,
    sync: str | None = None,
    non_finite: str | None = None,
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
      measured speeds; "equal", "random", "kqv" and "kqv-normalised" are there to compare with.
    - `max_share`: the most samples that this worker's memory can hold at once.
    - `checkpoint`: a folder in which rank 0 keeps the whole state, in the background, after every
      `every` steps; the newest `keep` stay.
    - `resume`: go on from the newest good checkpoint in that folder, if there is one (default: what
      `gangline run --resume` says).
    - `sync`: how tightly groups of workers are held together: "full" (the default, exact), "none",
      "percentage(0.25)", "local(16)", "local(16, nesterov)" or "flexible". Default: what
      `gangline run --sync` says.
    - `non_finite`: what to do where a worker's gradient is infinite, not a number, or out of all
      proportion: "keep" sums it, as one process would (and a GradScaler expects); "evict" ends that
      worker with a GradientError, and the others do the batch without it. Either way an event names
      the worker. Default: what `gangline run --non-finite` says, or else "keep".
    """
    session = _session()
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
        checkpoint=None
        if checkpoint is None
        else CheckpointOptions(folder=Path(checkpoint), every=every, keep=keep),
        resume=resume,
        sync=None if sync is None else parse_sync(sync),
        non_finite=non_finite,
    )
    training, prepared = set_up(session, objects, options)
    _job.training = training
    backward.listen(training)
    return prepared[0] if len(prepared) == 1 else tuple(prepared)


def rank() -> int:
    """This worker's rank: 0 … world_size() - 1."""
    whole = _whole()
    return _session().group.rank + (0 if whole is None else whole.first_rank)


def world_size() -> int:
    """How many workers the job has."""
    whole = _whole()
    return _session().group.size if whole is None else whole.workers


def is_main() -> bool:
    """Whether this is the one worker that should print and save."""
    return rank() == 0


def is_update() -> bool:
    """Whether the present batch completes the global batch, so that the optimizer should step.

    Always true without accumulation.
    """
    training = _job.training
    return training is None or training.handout is None or training.handout.is_update


def epochs(count: int) -> Iterator[int]:
    """The epochs that are still to do, 0 … count - 1."""
    training = _job.training
    epoch = 0 if training is None else training.epoch
    while epoch < count:
        if training is not None:
            training.skip_to_epoch(epoch)
        yield epoch
        if training is not None and training.has_left:
            return
        epoch = epoch + 1 if training is None else max(epoch + 1, training.epoch)


def no_sync() -> AbstractContextManager[None]:
    """A context whose backward passes add up locally, for loops that count their own windows."""
    training = _job.training
    if training is None:
        return nullcontext()
    context: AbstractContextManager[None] = training.no_sync()
    return context


@overload
def mean(value: float, weight: float = 1.0) -> float: ...
@overload
def mean(value: Tensor, weight: float = 1.0) -> Tensor: ...
def mean(value: float | Tensor, weight: float = 1.0) -> float | Tensor:
    """The mean of a value over all workers, each counting `weight` (say, its number of samples).

    All workers must call it. A worker with weight 0 may bring any value, even NaN. A number gives a
    number, a tensor a tensor; where all weights are 0 the result is NaN.
    """
    if not weight >= 0:  # NaN is no weight either
        raise UsageError(f"a weight is at least 0, not {weight}")
    local = torch.as_tensor(value).detach().to("cpu", torch.float64)
    part = torch.zeros_like(local) if weight == 0 else local * weight
    own = torch.cat([part.reshape(-1), torch.tensor([weight], dtype=torch.float64)])

    def add(group: Group) -> Tensor:
        total = own.clone()
        group.all_reduce(total)
        return total

    training = _job.training
    if training is None:
        flat = _session().communicator.call(add)
    else:
        flat = training.add_up(training.collective(add))
    result = (flat[:-1] / flat[-1]).view_as(local)
    if isinstance(value, Tensor):
        return result.to(value.device, value.dtype if value.is_floating_point() else None)
    return float(result)


def evaluate(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader over this worker's part of an evaluation data set; every sample is somebody's once.

    Bring the results together with `mean`:

        correct = count = 0
        for x, y in gangline.evaluate(test_loader):
            correct += int((model(x).argmax(1) == y).sum())
            count += len(y)
        accuracy = gangline.mean(correct / max(count, 1), weight=count)
    """
    check_loader(loader)
    session = _session()
    order = order_of(
        loader.sampler,
        length=len(loader.dataset),  # type: ignore[arg-type]
        seed=0,
    )
    whole = _whole()
    if whole is not None and isinstance(order, DrawnOrder):
        raise UnsupportedError(
            f"the evaluation's order is {order.name}: where groups train at their own pace, every "
            "group would draw an order of its own. Leave out the sampler, or choose the samples by "
            "torch.utils.data.Subset"
        )
    # In a shuffled evaluation nothing depends on the order, so none needs to be agreed.
    is_free = isinstance(order, ShuffledOrder)
    indices = range(order.length) if is_free else order.indices(0, _agree_on_order)
    if _job.training is None:
        shares, own_rank = (1,) * session.group.size, session.group.rank
    else:
        view, own_rank = _job.training.view_now()
        shares = view.shares
        if view.whole is not None:  # the other teams' parts are before this one's, and behind it
            after = view.whole.samples - view.whole.first_sample - sum(shares)
            shares, own_rank = (view.whole.first_sample, *shares, max(0, after)), own_rank + 1
    return evaluation_loader(loader, indices, shares=shares, rank=own_rank)


def _agree_on_order(exchange: Callable[[Group], Tensor], key: tuple[str, int]) -> Tensor:
    """An evaluation's order is drawn anew each time, as a loader does it; nothing is remembered."""
    training = _job.training
    if training is None:
        return _session().communicator.call(exchange)
    return training.collective(exchange)


def shutdown() -> None:
    """Leaves the job: the models, optimizers and torch are as they were before `init`."""
    training, session = _job.training, _job.session
    _job.training = _job.session = None
    backward.stop_listening()
    if training is not None:
        training.close()
    if session is not None:
        session.close(farewell(has_left=training is not None and training.has_left))
    atexit.unregister(shutdown)


def _whole() -> Whole | None:
    """The job that this worker's team is a part of; None where the team is the job."""
    return None if _job.training is None else _job.training.views.newest.whole


def _session() -> Session:
    if _job.session is None:
        raise UsageError("gangline is not set up yet: call gangline.init() first")
    return _job.session
