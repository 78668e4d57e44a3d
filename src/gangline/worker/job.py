# SPDX-License-Identifier: Apache-2.0
"""The job of this process, of which there is one at most: what the script's calls refer to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from gangline.spec.view import Whole
    from gangline.worker.loop.training import Training
    from gangline.worker.session import Session


@dataclass(slots=True)
class Job:
    """What `init` and `prepare` have made."""

    session: Session | None = None
    training: Training | None = None
    turn: str | None = None
    """What the main worker does alone just now, while the others wait for it."""

    def opened(self) -> Session:
        """The session. Raises UsageError before `init`."""
        if self.session is None:
            raise UsageError("gangline is not set up yet: call gangline.init() first")
        return self.session

    @property
    def whole(self) -> Whole | None:
        """The job that this worker's team is a part of; None where the team is the job."""
        return None if self.training is None else self.training.views.newest.whole

    @property
    def rank(self) -> int:
        """This worker's rank in the whole job, by the workers' numbers; behind all if it is apart."""
        session, training = self.opened(), self.training
        if training is not None and training.is_apart:
            return training.num_workers
        own = session.group.rank if training is None else training.gear.rank_now()
        return own + (0 if self.whole is None else self.whole.first_rank)


job = Job()
