# SPDX-License-Identifier: Apache-2.0
"""What the parts of the loop work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangline.worker.checks.late_sizes import LateSizes
from gangline.worker.checks.scrutiny import Scrutiny
from gangline.worker.faults import Faults
from gangline.worker.gradients.buffers import Buffers
from gangline.worker.gradients.exchange import Gradients
from gangline.worker.groups.handing_down import Giver
from gangline.worker.groups.leaving import Departure
from gangline.worker.groups.membership import Membership
from gangline.worker.groups.probation import Probation
from gangline.worker.groups.snapshot import Snapshot
from gangline.worker.samples.fetched import FetchedBatches
from gangline.worker.samples.order import Company
from gangline.worker.sync.mode import Mode
from gangline.worker.telling.deviceclock import DeviceClock
from gangline.worker.telling.logbook import LogBook
from gangline.worker.telling.stepclock import StepClock
from gangline.worker.telling.weighing import Weighing

if TYPE_CHECKING:
    from gangline.emulation.pacing import Pacer
    from gangline.spec.view import View
    from gangline.worker.gradients.layout import Layout
    from gangline.worker.groups.refounding import Refounding
    from gangline.worker.groups.views import ViewSchedule
    from gangline.worker.instruments import Instruments
    from gangline.worker.prepare.handshake import Introduction
    from gangline.worker.prepare.prepared import Prepared
    from gangline.worker.samples.handout import Handout
    from gangline.worker.samples.pulling import Pulls
    from gangline.worker.session import Session
    from gangline.worker.telling.metrics import MetricsProbe


@dataclass(frozen=True, kw_only=True)
class Gear:
    """Each is there from `prepare` to the end; a part takes what it needs."""

    session: Session
    prepared: Prepared
    views: ViewSchedule
    batches: FetchedBatches
    gradients: Gradients
    scrutiny: Scrutiny
    late_sizes: LateSizes
    buffers: Buffers
    snapshot: Snapshot
    membership: Membership
    giver: Giver
    departure: Departure
    mode: Mode
    clock: StepClock
    faults: Faults
    pacer: Pacer | None
    probe: MetricsProbe | None
    logbook: LogBook
    weighing: Weighing
    pulls: Pulls | None
    """Who asks for parts of global batches, where they are pulled."""

    @property
    def handout(self) -> Handout | None:
        """What the batch is that the loop computes now."""
        present = self.batches.present
        return None if present is None else present.handout

    @property
    def is_passing_through(self) -> bool:
        """Alone and with nothing to weigh, autograd's own gradients are the result."""
        if self.session.client is not None:
            return False
        return self.handout is None or self.handout.num_micros == 1

    def view_now(self) -> tuple[View, int]:
        """The view of the present batch, and this worker's rank: behind all others if it has left."""
        view = self.views.newest if self.handout is None else self.views.at(self.handout.step)
        worker = self.session.place.worker
        # Who was put out, and let go when the job was over, was never in a view without itself.
        is_member = worker in view.members and self.departure.num_behind is None
        return view, view.rank_of(worker) if is_member else len(view.members)

    def rank_now(self) -> int:
        """This worker's place among the members by their numbers, whenever they came."""
        view, place = self.view_now()
        worker = self.session.place.worker
        return sorted(view.members).index(worker) if worker in view.members else place


def equip(
    session: Session,
    prepared: Prepared,
    layout: Layout,
    introduction: Introduction,
    views: ViewSchedule,
    instruments: Instruments,
    refounding: Refounding,
) -> Gear:
    """Makes what the parts of the loop work with."""
    faults = instruments.faults or Faults()
    faults.watch(prepared.models)
    buffers = Buffers(prepared.models)
    # Statistics are exchanged in the backward pass, too: in an order that all workers share.
    gradients = Gradients(
        layout, buffers, session.communicator, is_eager=not prepared.sync_batchnorm
    )
    scrutiny = Scrutiny()
    snapshot = Snapshot(prepared, gradients.carried)
    membership = Membership(
        session,
        introduction,
        snapshot,
        group=views.newest.group,
        team=views.newest.team,
        probation=Probation(faults, prepared.models),
        refounding=refounding,
    )
    # What a checkpoint keeps of an order must be there when it is taken.
    is_free = session.client is None and instruments.checkpointer is None
    company = Company.ALONE if is_free else Company.TOGETHER
    return Gear(
        session=session,
        prepared=prepared,
        views=views,
        batches=FetchedBatches(prepared.models, needs_step=bool(prepared.optimizers)),
        gradients=gradients,
        scrutiny=scrutiny,
        late_sizes=LateSizes(session, scrutiny),
        buffers=buffers,
        snapshot=snapshot,
        membership=membership,
        giver=Giver(session, snapshot),
        departure=Departure(session),
        mode=Mode(session, prepared, views, membership, snapshot, company=company),
        clock=StepClock(device=DeviceClock(gradients.timed_mark)),
        faults=faults,
        pacer=instruments.pacer,
        probe=instruments.probe,
        logbook=LogBook(session),
        weighing=Weighing(session),
        pulls=instruments.pulls,
    )
