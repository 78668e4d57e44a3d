# SPDX-License-Identifier: Apache-2.0
"""From the events of a run to its summary. Pure: the same events give the same numbers.

Definitions, over the steady steps (all complete steps after the warm-up):

- A step's time is the median over its workers of how long it took each of them. Time that the job
  stood still because an operator asked for it is no part of any step.
- Throughput is the samples of all steps over the sum of their times; of teams that train at the same
  time, that of the team that took longest counts.
- Efficiency is the sum of the steps' compute-only optima (see `costs`) over the sum of their times:
  1 would mean perfect shares, and exchanging, loading and updating for nothing.
- A worker's wait is its exchange minus the shortest exchange of that step; it is charged to the
  worker that was ready last.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gangline.observe.costs import WorkerCost, fit_cost, optimum_s
from gangline.observe.ledger import read_ledger
from gangline.observe.losses import describe_implausible, describe_loss
from gangline.observe.planned import summarize_plan
from gangline.observe.served import ServedTally
from gangline.observe.summary import (
    DecisionSummary,
    Pacing,
    RoundsSummary,
    RunSummary,
    ServedSummary,
    TimeSpent,
    ViewSummary,
    WorkerSummary,
)
from gangline.observe.timeline import (
    MAX_WARM_UP_STEPS,
    Step,
    Timeline,
    accounted_s,
    build_timeline,
    wall_s,
)
from gangline.spec.event import SamplesLeased, StepsDone

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gangline.spec.event import AnyEvent, PacingMeasured, WorkerEnded


class _Findings(NamedTuple):
    """What all parts of the summary are made from."""

    timeline: Timeline
    steady: Sequence[Step]
    costs: Mapping[int, WorkerCost]
    blame: Mapping[int, tuple[int, float]]
    """By worker: the steady steps in which it was ready last, and what the others waited then."""


def summarize(events: Iterable[AnyEvent]) -> RunSummary:
    """The summary of a run, whole or broken."""
    kept = list(events)
    timeline = build_timeline(kept)
    steady = steady_steps(timeline)
    found = _Findings(timeline, steady, fit_costs(steady), _blame(steady))
    workers = [_worker(found, worker) for worker in timeline.workers]
    wait_s = sum(worker.spent.wait_s for worker in workers)
    times = sorted(map(_step_s, steady))
    warm_up = timeline.steps[: _num_warm_up(timeline)]
    return RunSummary(
        run=timeline.run,
        status=timeline.ended.status if timeline.ended else "unknown",
        reason=timeline.ended.reason if timeline.ended else "",
        num_steps=_num_steps(timeline, kept),
        num_epochs=len(timeline.epochs),
        samples=_samples(timeline, kept),
        wall_s=wall_s(timeline),
        num_pauses=len(timeline.pauses.spans),
        paused_s=timeline.pauses.within(timeline.first_t or 0.0, timeline.last_t or 0.0),
        skipped_steps=[warm_up[0].number, warm_up[-1].number] if warm_up else [],
        num_steady_steps=len(steady),
        throughput=_throughput(steady),
        step_mean_s=_ratio(sum(times), len(times)),
        step_median_s=median(times) if times else None,
        step_p90_s=_quantile(times, 0.9),
        efficiency=_efficiency(steady, found.costs),
        optimum_s=median(_optimum_s(step, found.costs) for step in steady) if steady else None,
        optimum_basis=_basis(found.costs),
        wait_s=wait_s,
        wait_fraction=_ratio(wait_s, sum(worker.spent.total_s for worker in workers)),
        workers=workers,
        views=[_view(found, key) for key in sorted(timeline.views)],
        num_teams=max(1, len(timeline.teams)),
        rounds=_rounds(timeline),
        served=_served(timeline, kept),
        decisions=_decisions(timeline),
        plan=summarize_plan(timeline, steady),
        num_missing_events=sum(loss.count for loss in timeline.losses),
        warnings=[*_warnings(timeline), *_notes_on_sums(timeline, kept)],
    )


def _num_steps(timeline: Timeline, events: Sequence[AnyEvent]) -> int:
    """All steps, those included that the logs sum up."""
    if any(isinstance(event, StepsDone) for event in events):
        return read_ledger(events).num_steps
    return len(timeline.steps)


def _samples(timeline: Timeline, events: Sequence[AnyEvent]) -> int:
    """How many samples the run has used; what a lost team had used counts when others have used it."""
    if any(isinstance(event, SamplesLeased | StepsDone) for event in events):
        return read_ledger(events).num_samples
    return sum(step.samples for step in timeline.steps)


def steady_steps(timeline: Timeline) -> list[Step]:
    """The steps that count: after the warm-up, and complete, unless none is."""
    warm = timeline.steps[_num_warm_up(timeline) :]
    return [step for step in warm if timeline.is_complete(step)] or warm


def _num_warm_up(timeline: Timeline) -> int:
    return min(MAX_WARM_UP_STEPS * max(1, len(timeline.teams)), len(timeline.steps) // 4)


def fit_costs(steps: Sequence[Step]) -> dict[int, WorkerCost]:
    """Each worker's cost as these steps show it; a worker that never had a sample has none."""
    observations: dict[int, list[tuple[int, float]]] = {}
    for step in steps:
        for worker, record in step.records.items():
            observations.setdefault(worker, []).append((record.samples, record.compute_s))
    fitted = {worker: fit_cost(own) for worker, own in sorted(observations.items())}
    return {worker: cost for worker, cost in fitted.items() if cost is not None}


def _step_s(step: Step) -> float:
    return median(step.elapsed_s.values())


def _throughput(steps: Sequence[Step]) -> float | None:
    return _ratio(sum(step.samples for step in steps), _duration_s(steps))


def _duration_s(steps: Sequence[Step]) -> float:
    """How long steps took: teams train at the same time where the numbers of their steps overlap."""
    by_team: dict[int, list[Step]] = {}
    for step in sorted(steps, key=lambda step: step.number):
        by_team.setdefault(step.team, []).append(step)
    total_s = longest_s = 0.0
    last = -1
    for own in by_team.values():  # in the order of their first steps
        if own[0].number > last:
            total_s, longest_s = total_s + longest_s, 0.0
        longest_s = max(longest_s, sum(map(_step_s, own)))
        last = max(last, own[-1].number)
    return total_s + longest_s


def _efficiency(steps: Sequence[Step], costs: Mapping[int, WorkerCost]) -> float | None:
    if not costs:
        return None
    return _ratio(sum(_optimum_s(step, costs) for step in steps), sum(map(_step_s, steps)))


def _optimum_s(step: Step, costs: Mapping[int, WorkerCost]) -> float:
    own = [costs[worker] for worker in step.records if worker in costs]
    return optimum_s(own, step.samples)


def _blame(steps: Sequence[Step]) -> dict[int, tuple[int, float]]:
    blame: dict[int, tuple[int, float]] = {}
    for step in steps:
        if len(step.records) > 1:
            count, wait_s = blame.get(step.last_worker, (0, 0.0))
            blame[step.last_worker] = (count + 1, wait_s + step.caused_s)
    return blame


def _basis(costs: Mapping[int, WorkerCost]) -> str:
    num_fitted = sum(cost.is_fitted for cost in costs.values())
    if not costs:
        return "unknown: no worker computed a sample"
    if num_fitted == len(costs):
        return "each worker's fixed time and time per sample"
    if num_fitted == 0:
        return "each worker's time per sample at the shares it had"
    return f"each worker's time per sample, and the fixed time of {num_fitted} of {len(costs)}"


def _time_spent(steps: Sequence[Step], worker: int) -> TimeSpent:
    mine = [step for step in steps if worker in step.records]
    records = [step.records[worker] for step in mine]
    wait_s = sum(step.wait_s(worker) for step in mine)
    return TimeSpent(
        compute_s=sum(record.compute_s for record in records),
        data_s=sum(record.data_s for record in records),
        exchange_s=sum(record.exchange_s for record in records) - wait_s,
        wait_s=wait_s,
        update_s=sum(record.update_s for record in records),
        other_s=sum(step.elapsed_s[worker] - accounted_s(step.records[worker]) for step in mine),
    )


def _worker(found: _Findings, worker: int) -> WorkerSummary:
    timeline = found.timeline
    own = [step.records[worker] for step in timeline.steps if worker in step.records]
    shares = [step.records[worker].samples for step in found.steady if worker in step.records]
    ready = timeline.ready.get(worker)
    cost = found.costs.get(worker)
    waited_for_steps, caused_wait_s = found.blame.get(worker, (0, 0.0))
    return WorkerSummary(
        worker=worker,
        node=timeline.node_of(worker),
        device=ready.device if ready else "",
        num_steps=len(own),
        num_steady_steps=len(shares),
        samples=sum(record.samples for record in own),
        share=median(shares) if shares else None,
        spent=_time_spent(found.steady, worker),
        fixed_s=cost.fixed_s if cost and cost.is_fitted else None,
        per_sample_s=cost.per_sample_s if cost else None,
        pacing=_pacing(timeline.pacing.get(worker)),
        waited_for_steps=waited_for_steps,
        caused_wait_s=caused_wait_s,
        exit=_exit(timeline.exits.get(worker)),
    )


def _pacing(measured: PacingMeasured | None) -> Pacing | None:
    if measured is None:
        return None
    return Pacing(asked=measured.asked, achieved=measured.achieved, slept_s=measured.slept_s)


def _exit(ended: WorkerEnded | None) -> str:
    if ended is None:
        return ""
    cause = ended.signal or f"exit code {ended.exit_code}"
    said = f"\n{ended.output}" if ended.output else ""
    return f"{cause}: {ended.reason}{said}" if ended.reason else f"{cause}{said}"


def _rounds(timeline: Timeline) -> RoundsSummary | None:
    """How the teams were held together; None where there are none."""
    if not timeline.rounds:
        return None
    committed = [one for one in timeline.rounds if one.is_committed]
    beside = [one.took_s for one in committed if not one.is_whole]
    return RoundsSummary(
        modes=list(dict.fromkeys(one.sync for one in timeline.rounds)),
        num_committed=len(committed),
        num_failed=len(timeline.rounds) - len(committed),
        took_median_s=median(beside) if beside else None,
        sent_bytes=sum(one.sent_bytes for one in committed),
    )


def _served(timeline: Timeline, events: Iterable[AnyEvent]) -> ServedSummary | None:
    tally = ServedTally()
    for event in events:
        tally.add(event)
    for step in timeline.steps:
        tally.wait(step.records, step.turn_s)
    return tally.summary()


def _view(found: _Findings, key: tuple[int, int]) -> ViewSummary:
    team, number = key
    adopted = found.timeline.views[key]
    steps = [step for step in found.steady if (step.team, step.view) == key]
    return ViewSummary(
        view=number,
        team=team,
        step=adopted.step,
        members=adopted.members,
        shares=adopted.shares,
        reason=adopted.reason,
        num_steps=len(steps),
        throughput=_throughput(steps),
        efficiency=_efficiency(steps, found.costs),
    )


def _decisions(timeline: Timeline) -> list[DecisionSummary]:
    start = timeline.first_t or 0.0
    return [
        DecisionSummary(
            at_s=decision.t - start,
            what=decision.what,
            reason=decision.reason,
            numbers=decision.numbers,
        )
        for decision in timeline.decisions
    ]


def _warnings(timeline: Timeline) -> list[str]:
    warnings = [describe_loss(loss) for loss in timeline.losses]
    if timeline.not_finite:
        first = min(timeline.not_finite, key=lambda event: event.t)
        warnings.append(
            f"{len(timeline.not_finite)} times a worker's part of the gradient was infinite or not a "
            f"number, first that of worker {first.worker} in step {first.step}: look whether the loss "
            "is finite, and whether the learning rate fits the batches"
        )
    if timeline.num_implausible:
        warnings.append(describe_implausible(timeline.num_implausible))
    incomplete = [step for step in timeline.steps if not timeline.is_complete(step)]
    if incomplete and not timeline.is_of_one_machine:
        missing = {
            w for step in incomplete for w in timeline.members_of(step) - step.records.keys()
        }
        names = ", ".join(str(worker) for worker in sorted(missing))
        warnings.append(
            f"{len(incomplete)} of {len(timeline.steps)} steps "
            f"{'lacks' if len(incomplete) == 1 else 'lack'} a worker's part "
            f"(missing: worker {names})"
        )
    return warnings


def _notes_on_sums(timeline: Timeline, events: Sequence[AnyEvent]) -> list[str]:
    """What must be known of the figures where the logs sum up steps."""
    total = _num_steps(timeline, events)
    if total <= len(timeline.steps):
        return []
    return [
        f"{total - len(timeline.steps)} of {total} steps are summed up in the logs: times are those of "
        f"the {len(timeline.steps)} steps that are written in full"
    ]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _quantile(ordered: Sequence[float], fraction: float) -> float | None:
    """Between the two nearest values, in proportion."""
    if not ordered:
        return None
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
