# SPDX-License-Identifier: Apache-2.0
"""What the event log is told of a meeting: who goes on, from which step, in which layout."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gangline.spec.event import Regrouped, ViewAdopted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.pipelining.standing import Standing
    from gangline.spec.pipelines import Layout


def met(
    standings: Sequence[Standing],
    layout: Layout,
    *,
    worker: int,
    view: int,
    step: int,
    took_s: float,
    reason: str,
) -> tuple[Regrouped, ViewAdopted]:
    """The events of one worker. A pipeline's share is that of its first stage."""
    members = [one.worker for one in standings]
    shares = {one.machines[0]: one.share for one in layout.pipelines}
    regrouped = Regrouped(
        t=time.time(),
        worker=worker,
        view=view,
        group=view,
        members=members,
        step=step,
        num_behind=0,
        took_s=took_s,
        reason=reason,
    )
    adopted = ViewAdopted(
        t=regrouped.t,
        view=view,
        step=step,
        members=members,
        shares=[shares.get(one.machine.name, 0) for one in standings],
        reason=reason,
        structure=layout.describe(),
    )
    return regrouped, adopted
