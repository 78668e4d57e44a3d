# SPDX-License-Identifier: Apache-2.0
"""Where the loop is, and what of it counts: the one state that the parts of the loop share."""

from __future__ import annotations

from dataclasses import dataclass, field

from gangline.spec.position import NOWHERE, Position
from gangline.worker.checkpoint.state import RandomNumbers


@dataclass(slots=True)
class Progress:
    """Every field says who changes it; the other parts only read it."""

    position: Position = field(default_factory=Position.at_start)
    """The next thing to do. Each part moves what it is about; recovery replaces it."""
    is_past: bool = False
    """Whether the loop is in an epoch that the job has left behind: it is alone there.

    Set where an epoch begins, and by recovery.
    """
    loop_epoch: int = 0
    """The epoch that the user's loop asks for next. Set where one begins, is left, or is skipped to."""
    is_in_epoch: bool = False
    """Whether the loop is in an epoch of the job's. Set where one begins and ends, and by recovery."""
    num_between: int = 0
    """Calls between two epochs. Counted by the calls, from where an epoch begins."""
    overtaken: tuple[int, int] = NOWHERE
    """Up to which step and call the others were ahead when this worker joined them. Set by recovery."""
    is_void: bool = False
    """Whether the attempt at this batch counts nothing. Set by recovery, until the next batch."""
    joins_void: bool = False
    """Whether the next batch counts nothing: the others have it, for a group that is no more.

    Set by recovery. They may call each other in it, and this worker must make the same calls.
    """
    must_cut: bool = False
    """Whether what was cut ahead was cut for a group that is no more.

    Set by recovery and by who takes up batches, until the rest of the epoch is cut anew.
    """
    is_cut_off: bool = False
    """Whether the epoch was not cut to its end: the group broke meanwhile. Set by who cuts it."""
    has_rest: bool = False
    """Whether the loop has left an epoch, of which somebody's samples are still to be used.

    Set where an epoch is left.
    """
    is_told: bool = False
    """Whether this worker is a spare, in no group, and was told where the others are.

    Set by recovery: its loop goes on to there, and then waits for more.
    """
    is_spare: bool = False
    """Whether it has become like the others since it was put out, and is in no group still."""
    is_through: bool = False
    """Whether the loop has gone through all epochs that it asked for. Set where it counts them."""
    random: RandomNumbers = field(default_factory=RandomNumbers)
    """With which random numbers the loop goes on. Set by recovery, from a checkpoint."""

    @property
    def is_late(self) -> bool:
        """Whether the others have been here before, so that what the loop does counts nothing.

        Between the last epoch that they have ended and the next one, it is with them.
        """
        is_begun = self.position.start > 0
        return self.is_past and (self.loop_epoch < self.position.epoch or is_begun)

    def move(self, **fields: int) -> None:
        """Changes these fields of the position."""
        self.position = self.position._replace(**fields)

    def arrive(self) -> None:
        """Unless it is in a past epoch, the loop goes on from where the others are."""
        if not self.is_past and self.overtaken > self.position[2:4]:
            self.move(handed_out=self.overtaken[0], calls=self.overtaken[1])
