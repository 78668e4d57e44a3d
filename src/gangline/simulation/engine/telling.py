# SPDX-License-Identifier: Apache-2.0
"""How the members of a simulated group report a step: to the log, and to the coordinator.

Workers to whom nothing ever happens say the same things at the same times. Where all are in step, their
reports go to the coordinator together, as columns; those of the others go one by one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gangline.coordinator.reports.bunch import packed
from gangline.protocol.messages import Measured
from gangline.simulation.reporting import step_events, worker_events

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gangline.planning.allocation.bounds import Floats, Shares
    from gangline.simulation.engine.costs import Costs
    from gangline.simulation.engine.crew import Crew
    from gangline.simulation.engine.field import Field
    from gangline.simulation.engine.member import Member
    from gangline.simulation.engine.rounds import Round

METRICS_STEPS = 10
"""Steps between two measurements of what the `kqv` allocations need."""


class Telling:
    """One group's reports."""

    def __init__(self, crew: Crew, field: Field, costs: Costs) -> None:
        self.told_s = -math.inf
        """When those last spoke who speak together."""
        self._crew = crew
        self._field = field
        self._costs = costs
        plain = [rank for rank in range(len(crew.members)) if rank not in crew.odd]
        self._plain: Shares = np.array(plain, dtype=np.int64)
        self._plain_workers: Shares = np.array([crew.members[rank].worker for rank in plain], int)

    @property
    def _is_together(self) -> bool:
        """Whether all workers of the job are in step."""
        return self._crew.view.whole is None

    def tell_all(self, step: Round, missing: Collection[Member]) -> None:
        """All have done the step; of the odd ones these say nothing."""
        crew = self._crew
        silent = {member.worker for member in missing}
        workers: Sequence[int] = step.view.members
        if silent:
            workers = [worker for worker in workers if worker not in silent]
        self._log(step, workers)
        hop_s = self._costs.hop_s(step.position.step)
        self._tell_metrics(step)
        if self._is_together:
            self.told_s = self._field.now
            self._tell_together(step, hop_s)
        for member in crew.odd.values() if self._is_together else crew.members:
            if member.worker not in silent:
                self._tell_singly(step, member, hop_s)

    def tell_some(self, step: Round, members: Sequence[Member]) -> None:
        """Only these have done the step, or can say so."""
        self._log(step, [member.worker for member in members])
        hop_s = self._costs.hop_s(step.position.step)
        for member in members:
            self._tell_singly(step, member, hop_s)

    def _log(self, step: Round, workers: Sequence[int]) -> None:
        field, crew = self._field, self._crew
        if self._is_together:
            for event in step_events(field.now, step, workers, scenario=field.scenario):
                field.sink(event)
        else:
            for done in worker_events(field.now, step, workers, scenario=field.scenario):
                field.sink(msgspec.structs.replace(done, team=crew.number))

    def _tell_metrics(self, step: Round) -> None:
        is_due = step.position.step % METRICS_STEPS == 0 and self._is_together
        if is_due and self._field.allocation.startswith("kqv"):
            told = self._costs.metrics(step.slowdown)
            for member, metrics in zip(self._crew.members, told, strict=True):
                if member.is_able:
                    member.say(metrics)

    def _tell_together(self, step: Round, hop_s: Floats | None) -> None:
        ranks = self._plain
        compute_s = step.compute_s[ranks]
        told_samples, told_s = step.told
        report = packed(
            step=step.position.step,
            view=step.view.number,
            workers=self._plain_workers,
            samples=told_samples[ranks],
            compute_s=told_s[ranks],
            exchange_s=float(step.compute_s.max()) - compute_s + step.exchange_s,
            other_s=self._field.scenario.update_s,
            hop_peers=None if hop_s is None else (ranks + 1) % len(self._crew.members),
            hop_s=None if hop_s is None else hop_s[ranks],
        )
        self._field.board.carry_many(report)

    def _tell_singly(self, step: Round, member: Member, hop_s: Floats | None) -> None:
        rank = self._crew.ranks[member.worker]
        compute_s = float(step.compute_s[rank])
        next_rank = (rank + 1) % len(self._crew.members)
        samples, told_s = step.told
        member.say(
            Measured(
                step=step.position.step,
                view=step.view.number,
                samples=int(samples[rank]),
                compute_s=float(told_s[rank]),
                exchange_s=float(step.compute_s.max()) - compute_s + step.exchange_s,
                other_s=self._field.scenario.update_s + step.served_s,
                hops=() if hop_s is None else ((next_rank, float(hop_s[rank])),),
            )
        )
