# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a backward pass, and how it is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gangline.spec.errors import (
    ExchangeError,
    ExchangeMismatch,
    GradientError,
    UnsupportedError,
)
from gangline.worker.telling.reports import tell_wrong

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.spec.view import View
    from gangline.worker.checks.scrutiny import Scrutiny, Wrong
    from gangline.worker.gradients.agreement import Agreed, Statement
    from gangline.worker.gradients.layout import Slot
    from gangline.worker.session import Session

FREEZE_ALIKE = (
    "Set requires_grad of the same parameters, before the same step, on all workers; and by the epoch "
    "(epoch >= 3, not epoch == 3), since a worker that comes back later does not go through all epochs"
)
"""What to do."""
_PLACE = ("view", "epoch", "step", "micro", "phase")


def place_of(said: Statement) -> tuple[int, ...]:
    """Where a worker is in its loop: the same on all members when they exchange."""
    return (*said.batch, said.made.phase)


def check_gradient(slot: Slot, *, takes_rows: bool = False) -> None:
    """Refuses gradients that have no place in a unit; sparse ones have, if it `takes_rows`."""
    gradient = slot.gradient
    if gradient.layout != torch.strided and not takes_rows:
        raise UnsupportedError(
            f"the gradient of parameter {slot.name!r} is sparse; use sparse=False in its layer, or "
            "leave that model out of prepare(). By its rows it travels where there are parameter "
            "servers (sync='asp'); in groups of several workers, if an nn.Embedding or nn.EmbeddingBag "
            "has it"
        )
    if gradient.requires_grad:
        raise UnsupportedError(
            f"backward(create_graph=True) keeps a graph in the gradient of parameter {slot.name!r}, "
            "which cannot be exchanged; for a gradient penalty use torch.autograd.grad(..., "
            "create_graph=True) and call backward() once on the whole loss"
        )


def unseen(slot: Slot) -> str:
    """A hook fired outside of every pass that was announced."""
    return (
        f"parameter {slot.name!r} got a gradient from a backward pass that gangline does not "
        "see: call loss.backward() or torch.autograd.backward(), not a copy of that function "
        "that was kept from before prepare()"
    )


def fired_twice(slot: Slot) -> str:
    """A hook fired again in the same pass."""
    return (
        f"parameter {slot.name!r} got its gradient twice in one backward pass, as a reentrant "
        "activation checkpoint makes it: use torch.utils.checkpoint.checkpoint(..., "
        "use_reentrant=False)"
    )


def drifted_apart(agreed: Agreed) -> str:
    """The members are at different places of their loops."""
    ends = zip(_PLACE, place_of(agreed.least), place_of(agreed.most), strict=True)
    places = [f"{name} {low} to {high}" for name, low, high in ends if low != high]
    return (
        f"the workers' loops have drifted apart: in one exchange they are at {', '.join(places)}. "
        "All workers must make the same backward passes for every batch: no backward(), break or "
        "continue that depends on the local batch or on rank(). Agree by gangline.any(flag)"
    )


def frozen_apart(names: Sequence[str]) -> str:
    """Parameters are frozen on some members only."""
    more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
    return f"parameter {names[0]!r}{more} frozen on some workers, and trained on others. {FREEZE_ALIKE}"


def first_apart(error: ExchangeMismatch) -> ExchangeMismatch:
    """The members of a new group did not exchange the same units in their first pass."""
    return ExchangeMismatch(
        f"{error}. This was a first backward pass, in which the gradients of all parameters travel "
        f"that are not frozen: where these differ, so do the calls. {FREEZE_ALIKE}"
    )


def check_sizes(agreed: Agreed, scrutiny: Scrutiny, session: Session, view: View) -> None:
    """Looks whose gradient is wrong, and says so of this worker's own.

    Where such workers are put out, raises GradientError in them and ExchangeError in the others, so
    that these do the batch again without them.
    """
    wrong = scrutiny.judge(agreed.sizes, usual=agreed.most.checks.usual)
    step = agreed.most.batch.step
    for one in wrong:
        if one.rank == session.group.rank:
            tell_wrong(session, one, step=step)
            if agreed.most.checks.evicts:
                raise GradientError(_put_out(one, worker=session.place.worker, step=step))
    if wrong and agreed.most.checks.evicts:
        culprits = ", ".join(str(view.members[one.rank]) for one in wrong)
        raise ExchangeError(f"the gradient of worker {culprits} is not finite or far too large")


def _put_out(wrong: Wrong, *, worker: int, step: int) -> str:
    how = (
        f"has a norm of {wrong.norm:.3g}, where at most {wrong.usual:.3g} is usual,"
        if wrong.is_finite
        else "is not finite"
    )
    return (
        f"the gradient of worker {worker} {how} at step {step}: its machine computes wrongly, or its "
        "samples are broken. The others go on without it, as `gangline run --non-finite evict` or "
        'prepare(non_finite="evict") says'
    )
