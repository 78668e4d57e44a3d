# SPDX-License-Identifier: Apache-2.0
"""What is attached to a training for measuring, for emulation and for keeping its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gangline.emulation.pacing import Pacer
    from gangline.worker.checkpoint.writer import Checkpointer
    from gangline.worker.checks.reduction import ReductionCheck
    from gangline.worker.faults import Faults
    from gangline.worker.normalisation.batch_statistics import ShareWatch
    from gangline.worker.samples.pulling import Pulls
    from gangline.worker.telling.metrics import MetricsProbe


class Instruments(NamedTuple):
    """Each of them may be missing."""

    pacer: Pacer | None = None
    probe: MetricsProbe | None = None
    faults: Faults | None = None
    checkpointer: Checkpointer | None = None
    reduction: ReductionCheck | None = None
    shares: ShareWatch | None = None
    pulls: Pulls | None = None
