# SPDX-License-Identifier: Apache-2.0
"""What the buttons of the dashboard mean: the inputs that the verbs of the command line make, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.coordinator.inputs import (
    CheckpointAsked,
    EndAsked,
    ExclusionAsked,
    LeaveAsked,
    PauseAsked,
    ReplanAsked,
    SyncAsked,
)
from gangline.coordinator.sanity import MAX_WORKERS
from gangline.protocol.status import ReplanRequest
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.coordinator.inputs import Input
    from gangline.protocol.live import OrderRequest

REPLAN = "replan"
_PLANS = ("auto", "flat")
"""Without a value, the first one is meant."""
_ORDERS: dict[str, Callable[[OrderRequest], Input]] = {
    "leave": lambda asked: LeaveAsked(worker=asked.worker),
    "exclude": lambda asked: ExclusionAsked(worker=asked.worker, is_out=True),
    "take_back": lambda asked: ExclusionAsked(worker=asked.worker, is_out=False),
    "sync": lambda asked: SyncAsked(sync=asked.value),
    REPLAN: lambda asked: ReplanAsked(request=ReplanRequest(is_auto=asked.value != "flat")),
    "pause": lambda asked: PauseAsked(is_paused=True),
    "resume": lambda asked: PauseAsked(is_paused=False),
    "checkpoint": lambda asked: CheckpointAsked(),
    "end": lambda asked: EndAsked(),
}
KILL = "kill"
"""An order that is the server's own: no decision of the coordinator's."""
ORDERS = (*_ORDERS, KILL)


class MeaninglessError(UsageError):
    """An order that no page of ours sends."""


def check_order(asked: OrderRequest) -> None:
    """Raises MeaninglessError for what could mean nothing, whatever the job is like."""
    if not -1 <= asked.worker < MAX_WORKERS:
        raise MeaninglessError(
            f"there is no worker {asked.worker}: they have the numbers from 0 to {MAX_WORKERS - 1}"
        )
    if asked.order == REPLAN and asked.value not in ("", *_PLANS):
        raise MeaninglessError(
            f"replan takes the value {' or '.join(_PLANS)}, not {asked.value[:40]!r}"
        )


def input_of(asked: OrderRequest) -> Input:
    """What the coordinator is told; raises UsageError for an order that there is not."""
    if asked.order in _ORDERS:
        return _ORDERS[asked.order](asked)
    raise UsageError(f"there is no order {asked.order!r}; what there is: {', '.join(ORDERS)}")
