# SPDX-License-Identifier: Apache-2.0
"""How this worker is held together with the others, as far as the loop must know."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from gangline.protocol.messages import Heard
    from gangline.spec.position import Position
    from gangline.spec.view import View
    from gangline.worker.gradients.agreement import Agreed, RoundSection
    from gangline.worker.gradients.layout import Unit
    from gangline.worker.samples.order import Company


class GroupLost(Exception):
    """The group broke while this worker waited in it: recover, and ask again."""


class KeptAt(Enum):
    """When a worker's state is that of the whole job, so that a checkpoint may be taken."""

    STEP = auto()
    EPOCH = auto()


class EpochEnd(NamedTuple):
    """How the groups of a job have ended an epoch."""

    step: int
    """From here on all count their steps alike."""
    is_complete: bool
    """Whether all samples of the epoch were used; else there is more to do."""
    has_moved: bool
    """Whether this worker goes on in another group, which it has yet to find."""


class Window(NamedTuple):
    """The samples that a gradient was computed from."""

    epoch: int
    stop: int
    """Up to where in the group's order they go."""
    samples: int
    passes: int
    """Backward passes that the gradient has come of."""
    weight: float | None = None
    """How much the samples count together; None: as many as they are."""
    step: int = 0
    """Which step of the job they are for."""


class Updater(Protocol):
    """Makes the update where the optimizer of this process does not make it alone."""

    @property
    def takes_rows(self) -> bool:
        """Whether gradients may be sparse."""
        ...

    def take_unit(self, unit: Unit, *, which: int) -> None:
        """A unit of the gradient has its sum, in this backward pass of the step; from any thread."""
        ...

    def take_waits(self) -> tuple[float, float]:
        """How many seconds of computing were waiting for parameters, and of these for a turn; once."""
        ...

    def update(
        self,
        step: Callable[[], None],
        *,
        rows: Mapping[int, Tensor],
        window: Window,
    ) -> float:
        """The gradient of a window is there; `step` is the optimizer's own.

        `rows` says which rows of sparse gradients count, by the ids of their parameters. Returns how
        many seconds of it were waiting for a turn. A failure (ExchangeError) breaks the group.
        """
        ...


class Strategy(Protocol):
    """One way to hold workers together. Only what may wait for others raises GroupLost."""

    @property
    def number(self) -> int:
        """Which of the groups that train side by side this worker is in."""
        ...

    @property
    def is_first(self) -> bool:
        """Whether this worker's group does what one group does for the whole job."""
        ...

    @property
    def company(self) -> Company:
        """With whom this worker goes through an epoch."""
        ...

    @property
    def kept_at(self) -> KeptAt:
        """When the state here is that of the whole job."""
        ...

    @property
    def waits_at_end(self) -> bool:
        """Whether members that come back at the very end copy the final state from this group."""
        ...

    @property
    def section(self) -> RoundSection:
        """What this worker says in the header of an exchange."""
        ...

    @property
    def updater(self) -> Updater | None:
        """Who makes the updates; None: the optimizer of this process, as it is."""
        ...

    def reach(self, position: Position, start: int, stop: int, *, length: int) -> int:
        """How far this worker's group may go in its order of the epoch; may raise GroupLost."""
        ...

    def locate(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Where in the epoch's order a part of the group's own order is."""
        ...

    def check_ahead(self) -> None:
        """The loop asks for an epoch before it has computed the last one: UsageError if it may not."""
        ...

    def after_step(self, agreed: Agreed | None, position: Position, *, step_s: float) -> None:
        """A step was made in that time, and the group agreed on this. A failure breaks the group."""
        ...

    def resume(self, position: Position) -> None:
        """A new group goes on: what the old one waited for when it broke. May raise GroupLost."""
        ...

    def end_epoch(self, position: Position) -> EpochEnd | None:
        """Waits for the other groups; None where there are none to wait for. May raise GroupLost."""
        ...

    def add_up(
        self,
        values: Sequence[float],
        position: Position,
        *,
        call: tuple[int, int],
        name: str,
        payload: bytes,
    ) -> Heard | None:
        """What all groups bring to a call; None where this is the only one. May raise GroupLost.

        `call` is the epoch before which it is made, and its number there.
        """
        ...

    def find_loss(self, position: Position) -> Exception | None:
        """What is lost where the script ends inside of an epoch; None where nothing is."""
        ...

    def follow(self, view: View) -> Strategy:
        """The strategy by which this view is trained: this one, or another from now on."""
        ...

    def come_over(self) -> Strategy:
        """This worker was given another group, of which nothing is known yet: the strategy there."""
        ...

    @property
    def stage(self) -> int:
        """How far this worker is in what is done beside the steps: compared by a new group."""
        ...

    def catch_up(self, stage: int) -> None:
        """Does what another member after the same step has done already; may wait for it."""
        ...

    def export(self) -> dict[str, Any]:
        """What a member of the same group needs to go on as this one does."""
        ...

    def load(self, state: dict[str, Any], /) -> None:
        """Becomes like the member that exported this."""
        ...

    def close(self) -> None:
        """Ends what is under way."""
        ...
