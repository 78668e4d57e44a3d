# SPDX-License-Identifier: Apache-2.0
"""What workers make in step, and what they would make apart: for `auto`, and as a hint for people.

In step, a step takes as long as the slowest member and the exchange, and spares make nothing. Apart,
every worker, spares too, trains at its own pace; copying and merging take a part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from gangline.control.commands import Say
from gangline.control.shares.rebalance import SETTLED
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from gangline.control.state import ControlState
    from gangline.planning.allocation.bounds import Floats

APART_PART = 0.9
"""Workers at their own pace are taken to make so much of the sum of what each of them makes."""
HINT_GAIN = 1.25
"""So many times as much must be made apart for people to be told of it."""
HINT_STEPS = 12
"""It is told when so many steps of the same members are known."""
_ROUNDS = 8
"""So often parts and speeds follow each other: by then they hardly change."""


class Pace(NamedTuple):
    """Samples per second, in step and apart, of how many workers each."""

    in_step: float
    apart: float
    num_used: int
    num_workers: int
    exchange_s: float

    @property
    def gain(self) -> float:
        """How many times as much would be made apart."""
        return self.apart / self.in_step

    @property
    def numbers(self) -> dict[str, float]:
        """As a decision has them."""
        return {"in_step": self.in_step, "apart": self.apart, "exchange_s": self.exchange_s}

    def __str__(self) -> str:
        exchange = f"which exchange for {self.exchange_s:.3g} s of each step"
        used = "all" if self.num_used == self.num_workers else f"{self.num_used} of"
        workers = f"{used} {self.num_workers} workers are used"
        return (
            f"in step, {workers}{f', {exchange}' if self.num_used > 1 else ''}: about "
            f"{self.in_step:,.0f} samples/s; apart, each at its own pace, all would make about "
            f"{self.apart:,.0f}"
        )


def find_pace(state: ControlState) -> Pace | None:
    """What these members make in step, and they and the spares apart; None: it is not known yet."""
    if state.steps_in_view < HINT_STEPS or int(state.speeds.observed.min()) < SETTLED:
        return None
    speeds, spares, batch = state.speeds, state.oversight.spares, state.options.global_batch
    exchange_s, times = state.oversight.recent_exchange_s, state.oversight.measured_s
    known_s = float(speeds.predicted_s(state.shares).max()) + exchange_s
    # Between steps there is more: loading, updating, whatever the loop does. It stays, apart as well.
    in_step_s = max(known_s, (times[-1] - times[0]) / (len(times) - 1))
    other_s = in_step_s - known_s
    apart = _add_up(
        np.append(speeds.fixed_s, [spare.fixed_s * spare.slowdown for spare in spares]) + other_s,
        np.append(speeds.per_sample_s, [spare.per_sample_s * spare.slowdown for spare in spares]),
        batch,
    )
    if in_step_s <= 0:
        return None
    return Pace(
        in_step=batch / in_step_s,
        apart=APART_PART * apart,
        num_used=len(state.members),
        num_workers=len(state.members) + len(spares),
        exchange_s=exchange_s,
    )


def _add_up(a: Floats, b: Floats, batch: int) -> float:
    """Samples per second of workers with these costs, each with its part of the batch, by its speed."""
    rate = 1 / b
    for _ in range(_ROUNDS):
        samples = batch * rate / rate.sum()
        rate = samples / (a + b * samples)
    return float(rate.sum())


def hint(state: ControlState, now: float) -> tuple[ControlState, list[Say]]:
    """Says once that the workers would make much more apart, where they may be parted."""
    options = state.options
    if state.oversight.has_hinted or not options.may_part or options.allocation != "balanced":
        return state, []  # other shares than the best are not a matter of being in step
    pace = find_pace(state)
    if pace is None or pace.gain < HINT_GAIN:
        return state, []
    told = msgspec.structs.replace(state.oversight, has_hinted=True)
    reason = (
        f"{pace}: run with --sync flexible, or `gangline set RUN_DIR sync flexible` now. The result is "
        "then another one: each group makes steps of its own, with a part of the batch"
    )
    decision = Decision(t=now, what="hint", reason=reason, numbers=pace.numbers)
    return msgspec.structs.replace(state, oversight=told), [Say(decision=decision)]
