# SPDX-License-Identifier: Apache-2.0
"""What all workers of a job do together, outside of steps: means, sums, agreement, meeting.

Each is a call that all workers must make at the same place of their loops. Who makes another one
there is named by a MismatchError. Where groups train at their own pace, these calls are over all
workers between epochs, and over the worker's own group inside of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import Tensor

from gangline.collectives import gather_bytes
from gangline.spec.errors import ExchangeError, MismatchError, UsageError
from gangline.worker.job import job
from gangline.worker.together.alike import add_alike
from gangline.worker.together.blobs import pack_blob, pack_blobs, unpack_blob, unpack_blobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives import Group

T = TypeVar("T")

NOTHING = torch.zeros(0, dtype=torch.float64)


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
    local = _as_numbers("gangline.mean", value)
    part = torch.zeros_like(local) if weight == 0 else local * weight
    own = torch.cat([part.reshape(-1), torch.tensor([weight], dtype=torch.float64)])
    flat = add_up(f"gangline.mean({_shape(local)})", own)
    result = (flat[:-1] / flat[-1]).view_as(local)
    if isinstance(value, Tensor):
        return result.to(value.device, value.dtype if value.is_floating_point() else None)
    return float(result)


@overload
def sum(value: int) -> int: ...
@overload
def sum(value: float) -> float: ...
@overload
def sum(value: Tensor) -> Tensor: ...
def sum(value: float | Tensor) -> float | Tensor:
    """The sum of a value over all workers: of a number, or element by element of a tensor.

    All workers must call it. Whole numbers stay whole (exactly, up to 2**53); a tensor keeps its
    dtype and device, but truth values are counted.
    """
    local = _as_numbers("gangline.sum", value)
    is_whole = isinstance(value, int) or (
        isinstance(value, Tensor) and not value.is_floating_point()
    )
    own = torch.cat([local.reshape(-1), torch.tensor([not is_whole], dtype=torch.float64)])
    flat = add_up(f"gangline.sum({_shape(local)})", own)
    result, is_whole = flat[:-1].view_as(local), not flat[-1]
    if isinstance(value, Tensor):
        kept = torch.int64 if value.dtype == torch.bool else value.dtype
        dtype = kept if is_whole or value.is_floating_point() else torch.float64
        return result.to(value.device, dtype)
    return int(result) if is_whole else float(result)


def any(flag: Any) -> bool:
    """Whether the flag is true on at least one worker: the same answer on all of them.

    All workers must call it. It is the way to leave a loop together:

        if gangline.any(loss > 1e4):
            break
    """
    return bool(add_up("gangline.any()", _number(bool(flag))) > 0)


def all(flag: Any) -> bool:
    """Whether the flag is true on every worker: the same answer on all of them.

    All workers must call it.
    """
    return bool(add_up("gangline.all()", _number(not flag)) == 0)


def barrier() -> None:
    """Waits until every worker has come here."""
    meet("gangline.barrier()")


def gather(value: Any) -> list[Any]:
    """Every worker's value, in the order of their ranks.

    All workers must call it. A value is a number, a tensor, or lists, tuples and dicts of such (the
    state of a metric). Tensors may differ in shape: bring predictions together by
    `torch.cat(gangline.gather(predictions))`. They come on the device of the worker's own tensor,
    and without gradients.
    """
    name = "gangline.gather()"
    blob = pack_blob(value)
    training = job.training

    def exchange(group: Group) -> list[bytes]:
        add_alike(group, NOTHING, name=name, worker=job.opened().place.worker)
        return gather_bytes(group, blob)

    blobs = collective(name, exchange)
    whole = job.whole
    if training is not None and whole is not None:
        heard = training.calls.ask_whole(name, payload=pack_blobs(whole.first_rank, blobs))
        blobs = blobs if heard is None else unpack_blobs(heard.payloads)
    device = value.device if isinstance(value, Tensor) else torch.device("cpu")
    return [unpack_blob(blob, device) for blob in blobs]


def is_ghost() -> bool:
    """Whether the present training batch is a ghost: repeated samples that count nothing.

    Leave it out of what the loop adds up: `if not gangline.is_ghost(): total += loss.item()`.
    """
    training = job.training
    return training is not None and training.shown is not None and not training.shown.samples


def meet(name: str) -> None:
    """Waits until every worker is in the call of this name."""
    add_up(name, NOTHING)


def add_up(name: str, values: Tensor) -> Tensor:
    """The sum of flat float64 values over all workers, which are all in the call of this name."""

    def exchange(group: Group) -> Tensor:
        return add_alike(group, values, name=name, worker=job.opened().place.worker)

    total = collective(name, exchange)
    heard = None if job.training is None else job.training.calls.ask_whole(name, total.tolist())
    return total if heard is None else torch.tensor(heard.values, dtype=total.dtype)


def collective(
    name: str, exchange: Callable[[Group], T], before: Callable[[], None] = lambda: None
) -> T:
    """Makes an exchange that all workers make at the same place of their loops.

    `before` is called before every attempt, and may raise.
    """
    session = job.opened()
    training = job.training
    if job.turn is not None:
        raise UsageError(
            f"{name} was called inside of {job.turn}: there the main worker is alone, and the others "
            "wait until it is done. Call it before or after"
        )
    if training is not None:
        return training.calls.make(exchange, what=name, before=before)
    while True:
        before()
        try:
            return session.communicator.call(exchange)
        except ExchangeError as error:
            if session.client is None or isinstance(error, MismatchError):
                raise
            session.met_again(error, what=name)  # raises it where nobody can mend that


def _as_numbers(name: str, value: float | Tensor) -> Tensor:
    # A number of Python's has double precision, whatever torch's default is.
    is_float = isinstance(value, float)
    local = torch.as_tensor(value, dtype=torch.float64 if is_float else None).detach()
    if local.is_complex():
        raise UsageError(f"{name} takes no complex numbers: give it torch.view_as_real(value)")
    return local.to("cpu", torch.float64)


def _number(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def _shape(value: Tensor) -> str:
    return "a number" if value.dim() == 0 else f"{list(value.shape)}"
