# SPDX-License-Identifier: Apache-2.0
"""A script that is measured: its own loop runs for some steps, with batches of several sizes, and ends.

What a step of n samples costs is written down as of any training, one `step_done` each. Sizes take
turns, so that a machine that gets slower meanwhile slows all of them alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.spec.event import Decision
from gangline.worker.groups.views import ViewSchedule

if TYPE_CHECKING:
    from gangline.spec.view import View

PARTS = (8, 4, 2, 1)
"""Batches are these parts of the global one."""


class ProbeSchedule(ViewSchedule):
    """The one worker's view, with another batch at every step, until it ends the script."""

    def __init__(self, first: View, *, steps: int, minimum: int) -> None:
        super().__init__(first, None)
        self._steps = steps
        self._sizes = sizes_of(first.global_batch, minimum=minimum)

    def cut(self, step: int) -> View:
        """Ends the process where enough was measured."""
        if step >= self._steps:
            raise SystemExit(0)
        return super().cut(step)

    def at(self, step: int) -> View:
        size = self._sizes[step % len(self._sizes)]
        return msgspec.structs.replace(self.newest, shares=(size,))


def sizes_of(global_batch: int, *, minimum: int) -> list[int]:
    """The sizes that take turns, the least first; fewer where they would be the same."""
    return sorted({max(global_batch // part, minimum) for part in PARTS})


def tell_workload(*, global_batch: int, gradient_bytes: int, t: float) -> Decision:
    """What a plan for this script needs to know besides its times."""
    return Decision(
        t=t,
        what="probe",
        reason="this script is measured, and ended after some steps",
        numbers={"global_batch": float(global_batch), "gradient_bytes": float(gradient_bytes)},
    )
