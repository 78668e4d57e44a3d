# SPDX-License-Identifier: Apache-2.0
"""Shares that change at every step, the same way each time: for tests of what must not notice."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.planning.allocation.proportional import drawn
from gangline.worker.groups.views import ViewSchedule
from gangline.worker.prepare import preparation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.spec.view import View
    from gangline.worker.line.client import ControlClient
    from gangline.worker.prepare.preparation import Request
    from gangline.worker.session import Session


class _ChangingSchedule(ViewSchedule):
    """The coordinator's views, with other shares at every step: they follow from seed and step."""

    def __init__(
        self, first: View, client: ControlClient | None, *, seed: int, minimum: int
    ) -> None:
        super().__init__(first, client)
        self._seed = seed
        self._minimum = minimum

    def at(self, step: int) -> View:
        view = super().at(step)
        shares = drawn(
            view.global_batch,
            len(view.members),
            rng=np.random.default_rng((self._seed, step)),
            minimum=self._minimum,
        )
        return msgspec.structs.replace(view, shares=tuple(shares.tolist()))


@contextmanager
def changing_shares(seed: int = 0) -> Iterator[None]:
    """Where a worker calls `prepare` in here, its job's shares are drawn anew at every step.

    All workers of the job must do so with the same seed. What is drawn depends on nothing but the
    seed, the step and the number of members, so that a run can be repeated.
    """

    def schedule(session: Session, request: Request, view: View) -> ViewSchedule:
        return _ChangingSchedule(
            view, session.client, seed=seed, minimum=request.normalisation.fewest
        )

    before = preparation._schedule
    preparation._schedule = schedule
    try:
        yield
    finally:
        preparation._schedule = before
