# SPDX-License-Identifier: Apache-2.0
"""What is written into the event log about teams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control.sync.rounds import Round
from gangline.coordinator.kept.records import Applied, Leased, Merged, Voided
from gangline.spec.event import (
    Decision,
    LeaseReturned,
    RoundEnded,
    SamplesGone,
    SamplesLeased,
    UpdateApplied,
    UpdateVoided,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gangline.control.sync.rounds import RoundClock
    from gangline.coordinator.kept.records import AnyRecord
    from gangline.eventlog import EventSink
    from gangline.spec.leases import Lease


class Chronicle:
    """Turns what happened to teams into events."""

    def __init__(self, events: EventSink, *, clock: Callable[[], float]) -> None:
        self._events = events
        self._clock = clock

    def say(self, what: str, reason: str, **numbers: float) -> None:
        """Something was decided."""
        self._events.write(Decision(t=self._clock(), what=what, reason=reason, numbers=numbers))

    def lease(self, leased: Leased) -> None:
        """A team was given samples."""
        self._events.write(
            SamplesLeased(
                t=self._clock(),
                team=leased.team,
                epoch=leased.epoch,
                number=leased.number,
                start=leased.start,
                stop=leased.stop,
            )
        )

    def give_back(self, team: int, epoch: int, leases: Iterable[Lease]) -> None:
        """A team was lost, and these samples are free again."""
        now = self._clock()
        for start, stop in leases:
            self._events.write(LeaseReturned(t=now, team=team, epoch=epoch, start=start, stop=stop))

    def lose_samples(self, worker: int, epoch: int, estate: Lease) -> None:
        """Only this worker had these samples, and it is gone."""
        self._events.write(
            SamplesGone(
                t=self._clock(), worker=worker, epoch=epoch, start=estate.start, stop=estate.stop
            )
        )

    def end_round(
        self,
        one: Round,
        *,
        epoch: int,
        is_committed: bool,
        is_all: bool,
        clock: RoundClock,
        offsets: Mapping[int, int] | None = None,
        reason: str = "",
    ) -> None:
        """A round is over, and counts or does not; `offsets` where they are not the reports'."""
        if offsets is None:
            offsets = {team: report.offset for team, report in one.reports.items()}
        now, reports = self._clock(), one.reports.values()
        self._events.write(
            RoundEnded(
                t=now,
                number=one.number,
                epoch=epoch,
                is_committed=is_committed,
                is_whole=one.is_whole,
                is_all=is_all,
                offsets={str(team): offset for team, offset in offsets.items()},
                took_s=now - one.opened_s,
                exchange_s=max((report.exchange_s for report in reports), default=0.0),
                busy_s=max((report.busy_s for report in reports), default=0.0),
                drift=max((report.drift for report in reports), default=0.0),
                sent_bytes=sum(report.sent_bytes for report in reports),
                interval_s=clock.interval_s,
                sync=str(clock.sync),
                reason=reason,
            )
        )

    def apply(self, applied: Applied) -> None:
        """An update of the parameter servers has its place."""
        entry = applied.entry
        teams = tuple(part.team for part in entry.parts)
        self._events.write(
            UpdateApplied(
                t=self._clock(),
                number=entry.number,
                epoch=applied.epoch,
                teams=teams,
                clocks=tuple(part.clock for part in entry.parts),
                weights=tuple(part.weight for part in entry.parts),
                offsets=tuple(applied.offsets[team] for team in teams),
                staleness=entry.staleness,
            )
        )

    def void(self, voided: Voided) -> None:
        """What a team has computed counts nothing."""
        self._events.write(
            UpdateVoided(
                t=self._clock(),
                team=voided.team,
                epoch=voided.epoch,
                start=voided.start,
                stop=voided.stop,
                clock=voided.clock,
            )
        )

    def repeat(self, record: AnyRecord, clock: RoundClock) -> None:
        """A coordinator was killed after it had written this into its journal: tell it again."""
        match record:
            case Leased():
                self.lease(record)
            case Applied():
                self.apply(record)
            case Voided():
                self.void(record)
            case Merged(number=number, epoch=epoch, offsets=offsets, is_whole=is_whole):
                one = Round(number, tuple(offsets), opened_s=self._clock(), is_whole=is_whole)
                self.end_round(
                    one,
                    epoch=epoch,
                    is_committed=True,
                    is_all=record.is_all,
                    clock=clock,
                    offsets=offsets,
                    reason="committed before the coordinator was started again",
                )
