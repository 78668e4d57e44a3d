# SPDX-License-Identifier: Apache-2.0
"""What a worker tells about its training: to its event log, and to the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.collectives import take_verdicts
from gangline.protocol.messages import Measured
from gangline.spec.event import (
    Decision,
    EpochDone,
    GradientNotFinite,
    GradientTooLarge,
    LinkMeasured,
    PacingMeasured,
    ServersUsed,
    StepDone,
    UnitsExchanged,
    ViewAdopted,
)
from gangline.worker.session import Session, now

if TYPE_CHECKING:
    from gangline.emulation.pacing import Pacer
    from gangline.paramserver.service.traffic import Moved
    from gangline.worker.checks.scrutiny import Wrong
    from gangline.worker.gradients.spans import UnitSpans
    from gangline.worker.groups.views import Adoption
    from gangline.worker.samples.handout import Handout
    from gangline.worker.telling.metrics import MetricsProbe
    from gangline.worker.telling.stepclock import StepTimes

_MEBIBYTE = float(1 << 20)


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
            team=0 if view.whole is None else view.whole.team,
            whole=0 if view.whole is None else view.whole.workers,
        )
    )


def tell_step(
    session: Session,
    handout: Handout,
    times: StepTimes,
    *,
    team: int,
    probe: MetricsProbe | None,
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
            exchange_s=times.exchange_s + times.served_s,
            update_s=times.update_s,
            team=team,
            turn_s=times.turn_s,
            parts=[list(part) for part in handout.parts],
        )
    )


def tell_units(session: Session, spans: UnitSpans | None, *, step: int) -> None:
    """When the units of a step were exchanged, where that was noted."""
    rows = [] if spans is None else spans.rows()
    if rows:
        session.record(UnitsExchanged(t=now(), worker=session.place.worker, step=step, units=rows))


def _tell_coordinator(
    session: Session, handout: Handout, times: StepTimes, probe: MetricsProbe | None
) -> None:
    client = session.client
    if client is None:
        return
    samples, compute_s = handout.told(times.compute_s)
    client.send(
        Measured(
            step=handout.step,
            view=handout.view,
            samples=samples,
            compute_s=compute_s,
            exchange_s=times.exchange_s,
            other_s=times.data_s + times.update_s + times.served_s,
            hops=_hops(session),
            waited_s=times.waited_s,
        )
    )
    if probe is not None:
        metrics = probe.measure(
            samples=handout.share, compute_s=times.compute_s, latency_s=client.latency_s
        )
        if metrics is not None:
            client.send(metrics)


def tell_wrong(session: Session, wrong: Wrong, *, step: int) -> None:
    """Says that this worker's own gradient is wrong."""
    worker = session.place.worker
    if wrong.is_finite:
        session.record(
            GradientTooLarge(t=now(), worker=worker, step=step, norm=wrong.norm, usual=wrong.usual)
        )
    else:
        session.record(GradientNotFinite(t=now(), worker=worker, step=step))


def tell_codecs(session: Session) -> None:
    """Says which codecs of this worker's groups pay, and which do not, once that is known."""
    for verdict in take_verdicts(session.group):
        numbers = {"with_s": verdict.with_s, "without_s": verdict.without_s}
        session.record(Decision(t=now(), what="codec", reason=str(verdict), numbers=numbers))


def _hops(session: Session) -> tuple[tuple[int, float], ...]:
    """What a MiB takes to the peers, where that is known."""
    return tuple(
        (hop.peer, _MEBIBYTE / hop.flow_bytes_per_s)
        for hop in session.group.hops()
        if hop.flow_bytes_per_s > 0
    )


def tell_epoch(session: Session, epoch: int, *, step: int, samples: int, team: int) -> None:
    """An epoch is over, for this worker and all others."""
    session.record(
        EpochDone(
            t=now(),
            worker=session.place.worker,
            epoch=epoch,
            step=step,
            samples=samples,
            team=team,
        )
    )


def tell_servers(session: Session, epoch: int, moved: Moved, *, team: int) -> None:
    """What this worker has moved to and from parameter servers in an epoch."""
    session.record(
        ServersUsed(
            t=now(),
            worker=session.place.worker,
            epoch=epoch,
            pushed_bytes=moved.pushed,
            pulled_bytes=moved.pulled,
            num_pulls=moved.num_pulls,
            num_fetches=moved.num_fetches,
            team=team,
        )
    )


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
