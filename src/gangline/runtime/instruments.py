# SPDX-License-Identifier: Apache-2.0
"""What is attached to a training for measuring, for emulation and for keeping its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gangline.emulation.pacing import Pacer
    from gangline.runtime.batch_statistics import ShareWatch
    from gangline.runtime.checkpoint import Checkpointer
    from gangline.runtime.faults import Faults
    from gangline.runtime.metrics import MetricsProbe
    from gangline.runtime.reduction import ReductionCheck


class Instruments(NamedTuple):
    """Each of them may be missing."""

    pacer: Pacer | None = None
    probe: MetricsProbe | None = None
    faults: Faults | None = None
    checkpointer: Checkpointer | None = None
    reduction: ReductionCheck | None = None
    shares: ShareWatch | None = None
