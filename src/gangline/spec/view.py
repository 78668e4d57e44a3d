# SPDX-License-Identifier: Apache-2.0
"""The view: one version of who takes part, and how much of each batch each one gets."""

from __future__ import annotations

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.exchange.structure import Structure


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """The job that a team is a part of, where groups train at their own pace."""

    team: int
    first_rank: int
    """How many workers are in the teams before this one."""
    workers: int
    """How many there are in all teams."""
    first_sample: int
    """How many samples of a global batch the teams before this one use."""
    samples: int
    """The global batch."""
    is_root: bool = False
    """Whether the team is all workers of a job that was one, and is about to be parted."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that may change during a run. Views are numbered and never edited.

    A worker's rank is its position in `members`.
    """

    number: int
    members: tuple[int, ...]
    """Worker ids, in rank order."""
    shares: tuple[int, ...]
    """Samples of the global batch per rank; they sum to the global batch."""
    group: int = 0
    """Which membership this is: views of one group differ in shares only and share connections."""
    reason: str = ""
    """Why this view replaced the one before it, with the numbers that led to it."""
    structure: Structure | None = None
    """How the members exchange, as a tree of groups; None: all in one ring."""
    whole: Whole | None = None
    """What the members are a part of; None: they are the job."""

    def __post_init__(self) -> None:
        if len(self.members) != len(self.shares):
            raise UsageError(
                f"a view needs one share per member: {len(self.members)} members, "
                f"{len(self.shares)} shares {list(self.shares)}"
            )
        if not self.members:
            raise UsageError("a view needs at least one member")
        if any(share < 0 for share in self.shares):
            raise UsageError(f"shares are numbers of samples, none below 0: {list(self.shares)}")
        if self.structure is not None and set(self.structure.workers) != set(self.members):
            raise UsageError(
                f"the structure {self.structure} must hold the members {list(self.members)} of its "
                "view, and nobody else"
            )

    @property
    def team(self) -> int:
        """The number of the members' team; -1: they are the job."""
        return -1 if self.whole is None else self.whole.team

    @property
    def global_batch(self) -> int:
        """How many samples one step uses, over all members."""
        return sum(self.shares)

    def rank_of(self, worker: int) -> int:
        """The rank of a member in this view."""
        return self.members.index(worker)
