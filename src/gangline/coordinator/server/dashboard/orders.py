# SPDX-License-Identifier: Apache-2.0
"""What the buttons of the dashboard mean: the inputs that the verbs of the command line make, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.coordinator.inputs import LeaveAsked, ReplanAsked, SyncAsked
from gangline.protocol.status import ReplanRequest
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from gangline.coordinator.inputs import Input
    from gangline.protocol.live import OrderRequest

ORDERS = ("leave", "sync", "replan")


def input_of(asked: OrderRequest) -> Input:
    """What the coordinator is told; raises UsageError for an order that there is not."""
    match asked.order:
        case "leave":
            return LeaveAsked(worker=asked.worker)
        case "sync":
            return SyncAsked(sync=asked.value)
        case "replan":
            return ReplanAsked(request=ReplanRequest(is_auto=asked.value != "flat"))
    raise UsageError(f"there is no order {asked.order!r}; what there is: {', '.join(ORDERS)}")
