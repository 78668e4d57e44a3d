# SPDX-License-Identifier: Apache-2.0
"""What a simulated run lived through, in numbers and in sentences."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from gangline.eventlog import NullWriter
from gangline.observe.ledger import read_ledger
from gangline.simulation import Recovery
from gangline.spec.event import (
    EpochDone,
    Event,
    Regrouped,
    RoundEnded,
    SamplesLeased,
    StepDone,
    StepSummary,
    ViewAdopted,
)
from gangline.spec.faults import Fault

if TYPE_CHECKING:
    from gangline.eventlog import EventSink
    from gangline.simulation import SimulationResult, TeamsResult

_KEPT = (StepDone, StepSummary, Regrouped, ViewAdopted, SamplesLeased, RoundEnded)
MAX_NAMED = 4


class Survival(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the faults, and of the samples."""

    fired: list[Fault]
    """In the order in which they happened."""
    unreached: list[Fault]
    """The run did not come to them."""
    recoveries: list[Recovery]
    samples_lost: int
    """Samples that no committed step used, by the ledger of the events."""
    samples_repeated: int
    """Samples that more than one used."""
    reports_void: int
    """Workers' reports of steps that were done again."""

    def sentences(self) -> list[str]:
        """What people are told."""
        said = []
        if self.fired:
            said.append(
                f"survived {_named(self.fired)}: {self.samples_lost} samples lost, "
                f"{self.samples_repeated} used twice; {self._recovered()}"
            )
        if self.unreached:
            said.append(f"not reached: {_named(self.unreached)}")
        return said

    def _recovered(self) -> str:
        times = [one.took_s for one in self.recoveries]
        match len(times):
            case 0:
                return "no group was lost"
            case 1:
                return f"the group recovered in {times[0]:.3f} s"
            case count:
                return f"the group recovered {count} times, in {max(times):.3f} s at most"


class Witness:
    """Keeps the events that the ledger is made of, and hands all of them on."""

    def __init__(self) -> None:
        self.sink: EventSink = NullWriter()
        """Where the events go."""
        self.now = 0.0
        """The time of the last event."""
        self.computed_s = 0.0
        """What all workers together have computed, as far as they tell."""
        self._kept: list[Event] = []
        self._epoch_ends_s: dict[int, float] = {}

    def write(self, event: Event) -> None:
        """Takes one event."""
        self.now = event.t
        if isinstance(event, _KEPT):
            self._kept.append(event)
        match event:
            case StepDone(compute_s=compute_s):
                self.computed_s += compute_s
            case StepSummary(workers=workers, median_compute_s=compute_s):
                self.computed_s += workers * compute_s
            case EpochDone(epoch=epoch):
                self._epoch_ends_s[epoch] = event.t
        self.sink.write(event)

    @property
    def epoch_s(self) -> list[float]:
        """What each epoch took that all workers came to the end of."""
        ends = [0.0, *(self._epoch_ends_s[epoch] for epoch in sorted(self._epoch_ends_s))]
        return [late - early for early, late in pairwise(ends)]

    def judge(self, result: SimulationResult | TeamsResult, *, length: int | None) -> Survival:
        """What the run lived through."""
        ledger = read_ledger(self._kept)
        return Survival(
            fired=list(result.fired),
            unreached=list(result.unreached),
            recoveries=list(result.recoveries),
            samples_lost=ledger.count_lost(length=length),
            samples_repeated=ledger.count_repeated(),
            reports_void=ledger.num_void,
        )


def _named(faults: list[Fault]) -> str:
    count = f"{len(faults)} fault{'s' if len(faults) != 1 else ''}"
    names = [_name(fault) for fault in faults[:MAX_NAMED]]
    more = ["…"] if len(faults) > MAX_NAMED else []
    return f"{count} ({', '.join(names + more)})"


def _name(fault: Fault) -> str:
    when = f"at {fault.at_s:g} s" if fault.step is None else f"in step {fault.step}"
    return f"{fault.kind} of worker {fault.worker} {when}"
