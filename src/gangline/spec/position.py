# SPDX-License-Identifier: Apache-2.0
"""How far a worker has come: what its parameters, optimizers and samples are the state of."""

from __future__ import annotations

from typing import Any, NamedTuple


class Position(NamedTuple):
    """The next thing this worker has to do. A greater position is further ahead."""

    step: int
    """The next optimizer update."""
    phase: int
    """How many exchanges of that step have succeeded already (a GAN has several)."""
    handed_out: int
    """The last step whose batch reached the loop."""
    calls: int
    """Collective calls outside of steps (`mean`) since that hand-out."""
    epoch: int
    start: int
    """Where in the epoch's order the next step begins."""

    @classmethod
    def at_start(cls) -> Position:
        """Nothing has been done."""
        return cls(step=0, phase=0, handed_out=-1, calls=0, epoch=0, start=0)

    def describe(self) -> str:
        """Where in its loop a worker is, for people."""
        steps = self.step + (self.phase > 0)
        return f"after {steps} step{'' if steps == 1 else 's'} (epoch {self.epoch})"

    def is_behind(self, call: tuple[Any, ...]) -> bool:
        """Whether the result of this collective call is not kept any longer."""
        if call[0] == ORDER:
            return bool(call[1] < self.epoch)
        if call[0] == BETWEEN:  # a loop may go by it (to stop early), and there are few of them
            return bool(call[1] < self.epoch - 1)
        step = call[1] if call[0] == VOID else call[0]
        return bool(step < self.handed_out - 1)


ORDER = "order"
"""The order of an epoch."""
BETWEEN = "between"
"""A call between two epochs: the number of the next one, and of the call."""
VOID = "void"
"""A call in an attempt that counts nothing: the step, and the number of the call."""
NOWHERE = (-1, 0)
"""Before the first call in a step: the last step that was handed out, and how many calls since."""
NO_EPOCH = 1 << 40
"""The job is over: it has left all epochs behind, also where its loop was left early."""
