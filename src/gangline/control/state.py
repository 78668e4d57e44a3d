# SPDX-License-Identifier: Apache-2.0
"""What the control function remembers between two events. Never changed in place."""

from __future__ import annotations

import msgspec
import numpy as np

from gangline.control.inputs import MetricsMeasured
from gangline.control.options import ControlOptions
from gangline.control.shares.price import RecutPrice
from gangline.control.shares.speeds import Speeds, unknown_speeds
from gangline.control.stragglers.oversight import Oversight
from gangline.control.stragglers.solo import Solo
from gangline.control.structure.pace import Pace
from gangline.planning.allocation.bounds import Floats, Shares
from gangline.spec.view import View


class ControlState(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The newest view, and what is known about its members, in rank order."""

    options: ControlOptions
    view: View | None
    """The newest view, whether adopted yet or not; None before anybody joined."""
    shares: Shares
    """The view's shares, as an array."""
    max_samples: Shares
    weights: Floats
    """The speeds that the workers were given when they joined."""
    speeds: Speeds
    metrics: MetricsMeasured | None
    """The last ones that cover all members, in rank order."""
    steps_in_view: int
    """Measured steps that were cut by the newest view."""
    measurements_behind_cut: int
    """What the newest cut stands on, or was last looked at with: `balanced` counts observations of
    the worker with the fewest, `kqv` 1 for metrics; 0 where nothing had been measured."""
    oversight: Oversight
    """What the runtime manager knows of the members, and of who was put out."""
    pace: Pace = Pace()
    """What a step is expected to take, and what the last ones took."""
    price: RecutPrice = RecutPrice()
    """What a new cut costs."""
    solo: Solo = Solo()
    """Whether the fastest member is better off alone."""

    @classmethod
    def begin(cls, options: ControlOptions) -> ControlState:
        """The state of a run that nobody has joined."""
        nobody = np.zeros(0, dtype=np.int64)
        return cls(
            options=options,
            view=None,
            shares=nobody,
            max_samples=nobody,
            weights=np.zeros(0),
            speeds=unknown_speeds(0),
            metrics=None,
            steps_in_view=0,
            measurements_behind_cut=0,
            oversight=Oversight.begin(options.detector),
        )

    @classmethod
    def resume(
        cls,
        options: ControlOptions,
        view: View,
        *,
        max_samples: tuple[int, ...],
        weights: tuple[float, ...],
    ) -> ControlState:
        """The state of a run whose newest view is known, and nothing that was measured before."""
        options = msgspec.structs.replace(options, global_batch=view.global_batch, whole=view.whole)
        return msgspec.structs.replace(
            cls.begin(options),
            view=view,
            shares=np.array(view.shares, dtype=np.int64),
            max_samples=np.array(max_samples, dtype=np.int64),
            weights=np.array(weights),
            speeds=unknown_speeds(len(view.members)),
            oversight=Oversight.begin(options.detector).joined(view.members),
        )

    @property
    def members(self) -> tuple[int, ...]:
        """Worker ids, in rank order."""
        return self.view.members if self.view is not None else ()
