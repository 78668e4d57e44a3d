# SPDX-License-Identifier: Apache-2.0
"""What a worker tells about its training: to its event log, and to the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.runtime.messages import Measured
from gangline.runtime.session import Session, now
from gangline.spec.event import LinkMeasured, PacingMeasured, StepDone, ViewAdopted

if TYPE_CHECKING:
    from gangline.emulation.pacing import Pacer
    from gangline.runtime.handout import Handout
    from gangline.runtime.metrics import MetricsProbe
    from gangline.runtime.stepclock import StepTimes
    from gangline.runtime.views import Adoption


def tell_view(session: Session, adoption: Adoption) -> None:
    """Writes down from which step on a view holds, and why."""
    view = adoption.view
    session.record(
        ViewAdopted(
            t=now(),
            view=view.number,
            step=adoption.step,
            members=list(view.members),
            shares=list(view.shares),
            reason=view.reason,
            structure="" if view.structure is None else str(view.structure),
        )
    )


def tell_step(
    session: Session, handout: Handout, times: StepTimes, *, probe: MetricsProbe | None
) -> None:
    """A step was made: what it used, and what it cost."""
    _tell_coordinator(session, handout, times, probe)
    session.record(
        StepDone(
            t=now(),
            worker=session.place.worker,
            step=handout.step,
            epoch=handout.epoch,
            view=handout.view,
            samples=handout.share,
            start=handout.window_stop - handout.total,
            stop=handout.window_stop,
            compute_s=times.compute_s,
            data_s=times.data_s,
            exchange_s=times.exchange_s,
            update_s=times.update_s,
        )
    )


def _tell_coordinator(
    session: Session, handout: Handout, times: StepTimes, probe: MetricsProbe | None
) -> None:
    client = session.client
    if client is None:
        return
    client.send(
        Measured(
            step=handout.step,
            view=handout.view,
            samples=handout.share,
            compute_s=times.compute_s,
        )
    )
    if probe is not None:
        metrics = probe.measure(
            samples=handout.share, compute_s=times.compute_s, latency_s=client.latency_s
        )
        if metrics is not None:
            client.send(metrics)


def tell_pacing(session: Session, pacer: Pacer) -> None:
    """Says how well the emulation hit the asked speed."""
    report = pacer.report()
    session.record(
        PacingMeasured(
            t=now(),
            worker=session.place.worker,
            asked=report.asked,
            achieved=report.achieved,
            cpu_s=report.cpu_s,
            slept_s=report.slept_s,
        )
    )


def tell_links(session: Session) -> None:
    """Says what was measured on the way to each peer."""
    for hop in session.group.hops():
        session.record(
            LinkMeasured(
                t=now(),
                worker=session.place.worker,
                peer=hop.peer,
                latency_s=hop.latency_s,
                bytes_per_s=hop.bytes_per_s,
                bytes=hop.bytes,
                corrupt=hop.corrupt,
            )
        )
