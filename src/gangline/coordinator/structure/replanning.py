# SPDX-License-Identifier: Apache-2.0
"""The structure of a running job: what is asked for, what it is planned from, and where plans go.

A new structure needs a new group, so it waits until the present one has begun to train, as those do
who want in or out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from gangline.control import StructureAsked
from gangline.coordinator.kept.records import Restructured
from gangline.spec.errors import UsageError
from gangline.spec.exchange.compression import NONE
from gangline.spec.outlook import LOCAL_LINK, Outlook
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, Zone
from gangline.spec.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.control import ControlOptions, KeepPlan
    from gangline.coordinator.kept.records import Journal
    from gangline.coordinator.members.roster import Roster
    from gangline.eventlog import EventSink
    from gangline.protocol.status import ReplanRequest
    from gangline.spec.exchange.structure import Structure
    from gangline.spec.plan import Plan
    from gangline.spec.view import View

BETWEEN_HOSTS = Link(latency_s=200e-6, bytes_per_s=1.25e8)
"""What is assumed of links that nobody measured: a network of 1 Gbit/s."""


class PlanSink(Protocol):
    """Who keeps plans where people find them."""

    def keep_plan(self, plan: Plan) -> None: ...


class Replanning:
    """The wish for another structure, until it can be granted; and what comes of it."""

    def __init__(
        self,
        roster: Roster,
        *,
        profile: ClusterProfile | None,
        plans: PlanSink | None,
        journal: Journal,
        restored: Restructured | None,
    ) -> None:
        """`restored` is what the journal says was asked for last."""
        self._profile = profile
        self._plans = plans
        self._roster = roster
        self._journal = journal
        self._restored = restored
        self._wish: StructureAsked | None = None

    def ask(self, request: ReplanRequest, view: View | None) -> None:
        """Somebody wants another structure. Raises UsageError where it cannot be."""
        if view is None:
            raise UsageError(
                "the job has not begun, so nobody exchanges yet; ask again when it has"
            )
        if self._roster.whole is not None:
            raise UsageError(
                "groups that train at their own pace stay as they are: end the job first"
            )
        members = view.members
        self._roster.check_elastic(members, what="exchange in another structure in")
        if request.is_auto and view.structure is not None and _is_compressed(view.structure):
            raise UsageError(
                f"the present structure {view.structure} compresses what it sends, and a planned one "
                "would not; ask for `flat` first if that is what you want"
            )
        if request.is_auto:
            if request.profile is not None:
                self._profile = request.profile
            self._wish = StructureAsked(structure=None, reason=_ASKED, outlook=self._outlook())
            return
        structure = request.structure
        if structure is not None and not set(structure.workers) & set(members):
            raise UsageError(
                f"the structure {structure} holds none of the members {list(members)} of this job; "
                "plan for the workers that it has"
            )
        self._wish = StructureAsked(structure=structure, reason=_ASKED)

    def take(self, *, is_settled: bool) -> StructureAsked | None:
        """The wish, when the present group has begun to train."""
        if not is_settled:
            return None
        wish, self._wish = self._wish, None
        return wish

    def applied_to(self, options: ControlOptions) -> ControlOptions:
        """The options of the run with the structure that was asked for last, or what to plan from."""
        restored, founded = self._restored, self._roster.founded
        plans = self._profile is not None and self._roster.whole is None
        # A transport that lets nobody come and go cannot make another group either.
        plans = plans and founded is not None and self._roster.is_elastic(founded.members)
        if restored is not None:
            options = msgspec.structs.replace(options, structure=restored.structure)
            plans = restored.is_planned
        return msgspec.structs.replace(options, outlook=self._outlook()) if plans else options

    def note(self, before: ControlOptions, after: ControlOptions) -> None:
        """Keeps what was decided about the structure, before anybody is told of it."""
        was_planned, is_planned = before.outlook is not None, after.outlook is not None
        if (before.structure, was_planned) != (after.structure, is_planned):
            self._journal.append(Restructured(structure=after.structure, is_planned=is_planned))

    def keep(self, command: KeepPlan, events: EventSink) -> None:
        """Has a plan kept where people find it."""
        events.write(command.made)
        if self._plans is not None:
            self._plans.keep_plan(command.plan)

    def _outlook(self) -> Outlook:
        founded = self._roster.founded
        assert founded is not None
        first = self._roster.ready[founded.members[0]]
        return Outlook(
            workload=Workload(
                global_batch=first.global_batch,
                gradient_bytes=first.gradient_bytes,
                minimum_share=max(1, first.minimum),
            ),
            profile=self._profile or self._seen_profile(),
        )

    def _seen_profile(self) -> ClusterProfile:
        """What the hellos tell: who is on which host."""
        hellos = self._roster.hellos
        hosts = _numbered(hello.address.host_id for _, hello in sorted(hellos.items()))
        nodes = tuple(
            NodeProfile(
                name=f"worker {worker}",
                per_sample_s=1.0,
                place=f"host {hosts[hellos[worker].address.host_id]}" if worker in hellos else "",
            )
            for worker in range(max(hellos) + 1)
        )
        if len(hosts) == 1:
            return ClusterProfile(nodes=nodes)
        inside = (Zone(place=f"host {number}", link=LOCAL_LINK) for number in hosts.values())
        return ClusterProfile(nodes=nodes, zones=(Zone(place="", link=BETWEEN_HOSTS), *inside))


_ASKED = "somebody asked for another structure"


def _is_compressed(structure: Structure) -> bool:
    return structure.compression != NONE or any(map(_is_compressed, structure.groups))


def _numbered(names: Iterable[str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for name in names:
        numbers.setdefault(name, len(numbers))
    return numbers
