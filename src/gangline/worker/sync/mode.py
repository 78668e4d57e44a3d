# SPDX-License-Identifier: Apache-2.0
"""The strategy that holds now: workers that were in step may part into teams while they train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.worker.sync.in_step import InStep
from gangline.worker.sync.teams.member import TeamMember

if TYPE_CHECKING:
    from gangline.spec.view import View
    from gangline.worker.groups.membership import Membership
    from gangline.worker.groups.snapshot import Snapshot
    from gangline.worker.groups.views import ViewSchedule
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.samples.order import Company
    from gangline.worker.session import Session
    from gangline.worker.sync.strategy import Strategy


class Mode:
    """Holds the strategy, and changes it where a view or the coordinator says so."""

    def __init__(
        self,
        session: Session,
        prepared: Prepared,
        views: ViewSchedule,
        membership: Membership,
        snapshot: Snapshot,
        *,
        company: Company,
    ) -> None:
        """`company` is that of workers that are in step."""

        def part(*, is_parting: bool) -> Strategy:
            return TeamMember(session, prepared, views, membership, is_parting=is_parting)

        self._session = session
        self._membership = membership
        self._snapshot = snapshot
        is_team = views.newest.whole is not None
        self._set(part(is_parting=False) if is_team else InStep(company, part))
        membership.before_entering = self.follow

    def _set(self, strategy: Strategy) -> None:
        self.strategy = self._snapshot.companion = strategy

    def follow(self, view: View) -> None:
        """From here on it is trained by this view."""
        self._set(self.strategy.follow(view))

    def come_over(self) -> bool:
        """Whether this worker was given another group, which it enters as if it had just come."""
        client = self._session.client
        if client is None or not client.has_moved:
            return False
        self._membership.move(keeps_state=False)
        self._set(self.strategy.come_over())
        return True
