# SPDX-License-Identifier: Apache-2.0
"""All workers make every step together: there is one group, and it is the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gangline.worker.gradients.agreement import RoundSection
from gangline.worker.sync.strategy import KeptAt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.spec.position import Position
    from gangline.spec.view import View
    from gangline.worker.gradients.agreement import Agreed
    from gangline.worker.samples.order import Company
    from gangline.worker.sync.strategy import Strategy


class Part(Protocol):
    """Makes the strategy of workers that are in step no longer."""

    def __call__(self, *, is_parting: bool) -> Strategy: ...


class InStep:
    """The strategy with nobody to wait for but the group itself."""

    number = 0
    is_first = True
    kept_at = KeptAt.STEP
    waits_at_end = True
    section = RoundSection()
    updater = None
    stage = -1

    def __init__(self, company: Company, part: Part) -> None:
        self.company = company
        self._part = part

    def reach(self, position: Position, start: int, stop: int, *, length: int) -> int:
        """To the end of the epoch's order."""
        return min(stop, length)

    def locate(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The group's order is the epoch's."""
        return [(start, stop)]

    def check_ahead(self) -> None:
        """Epochs have no end at which anybody must be met."""

    def after_step(self, agreed: Agreed | None, position: Position, *, step_s: float) -> None:
        """The step was the whole job's."""

    def resume(self, position: Position) -> None:
        """There was nothing else to wait for."""

    def end_epoch(self, position: Position) -> None:
        """There are no other groups."""

    def add_up(
        self,
        values: Sequence[float],
        position: Position,
        *,
        call: tuple[int, int],
        name: str,
        payload: bytes,
    ) -> None:
        """The group has brought all there is."""

    def find_loss(self, position: Position) -> None:
        """All parameters are those of the job, after every step."""

    def follow(self, view: View) -> Strategy:
        """A view of a part of the job says that all workers stop together, to part into teams."""
        return self if view.whole is None else self._part(is_parting=True)

    def come_over(self) -> Strategy:
        """The others have parted, and this worker has missed it."""
        return self._part(is_parting=False)

    def catch_up(self, stage: int) -> None:
        """Nothing is done beside the steps."""

    def export(self) -> dict[str, Any]:
        """Nothing but the state of the models and optimizers."""
        return {}

    def load(self, state: dict[str, Any], /) -> None:
        """There is nothing to take over."""

    def close(self) -> None:
        """Nothing is under way."""
