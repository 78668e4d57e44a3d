# SPDX-License-Identifier: Apache-2.0
"""Which view holds for which step, on this worker and so on all of them.

The coordinator publishes views; the workers agree in the header of an exchange on the newest one that
all of them hold, and on the furthest step that any of them has cut already. From the step after that
one the new view holds: nobody has cut it yet, and everybody knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gangline.worker.gradients.agreement import ViewSection

if TYPE_CHECKING:
    from gangline.spec.view import View
    from gangline.worker.gradients.agreement import Agreed
    from gangline.worker.line.client import ControlClient


class Adoption(NamedTuple):
    """A view, and the first step that is cut by it."""

    view: View
    step: int


class ViewSchedule:
    """The views that were adopted, and the client that may hold a newer one."""

    def __init__(self, first: View, client: ControlClient | None) -> None:
        self._adopted = [Adoption(first, 0)]
        self._client = client
        self.last_cut = -1

    @property
    def newest(self) -> View:
        """The last view that was agreed on."""
        return self._adopted[-1].view

    @property
    def latest(self) -> Adoption:
        """The last view that was agreed on, and its first step."""
        return self._adopted[-1]

    @property
    def held(self) -> int:
        """The number of the newest view that this worker knows of, in its present team."""
        if self._client is None:
            return self.newest.number
        # Looked up first: when it is another team's, this worker has moved.
        number = self._client.newest_view
        return self.newest.number if self._client.has_moved else number

    @property
    def section(self) -> ViewSection:
        """What this worker says of views in the header of an exchange."""
        return ViewSection(newest=self.held, last_cut=self.last_cut)

    def cut(self, step: int) -> View:
        """The view for the batch of `step`, which is being cut now."""
        self.last_cut = max(self.last_cut, step)
        return self.at(step)

    def at(self, step: int) -> View:
        """The view that holds for `step`; for a step of a group that is no more, the first one."""
        known = (view for view, start in reversed(self._adopted) if start <= step)
        return next(known, self._adopted[0].view)

    def restart(self, view: View, step: int) -> None:
        """A new group goes on with `step`, by this view; whatever was cut ahead is void."""
        self._adopted = [Adoption(view, step)]
        self.last_cut = step - 1

    def agree(self, agreed: Agreed) -> Adoption | None:
        """Adopts the newest view that everybody holds, if it is a new one."""
        number = agreed.least.views.newest
        if self._client is None or self._client.has_moved or number <= self.newest.number:
            return None
        adoption = Adoption(self._client.view(number), agreed.most.views.last_cut + 1)
        # What a newer adoption overtakes before its step has come never held.
        kept = [old for old in self._adopted if old.step < adoption.step]
        # Batches are cut ahead, so older views hold until the present step has passed them.
        passed = [i for i, old in enumerate(kept) if old.step <= agreed.least.batch.step]
        self._adopted = [*kept[max(passed, default=0) :], adoption]
        return adoption
