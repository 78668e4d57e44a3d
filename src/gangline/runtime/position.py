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
        """Whether no worker can still need the result of this collective call."""
        if call[0] == "order":
            return bool(call[1] < self.epoch)
        return bool(call[0] < self.handed_out - 1)
