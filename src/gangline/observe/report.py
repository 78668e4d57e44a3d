# SPDX-License-Identifier: Apache-2.0
"""The words and tables of the report, as data: whoever prints them decides how they look."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.observe.summary import PlanSummary, RunSummary, ViewSummary, WorkerSummary


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of text."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def headline(summary: RunSummary) -> list[str]:
    """The run in three lines: what it did, how fast, how well."""
    return [
        f"{_name(summary)}: {summary.status}{_because(summary.reason)}, "
        f"{_count(len(summary.workers), 'worker')}, {_count(summary.num_steps, 'step')}, "
        f"{_count(summary.num_epochs, 'epoch')}, {_at_least(summary)}{summary.samples} samples "
        f"in {seconds(summary.wall_s)}",
        *_pause_lines(summary),
        *_speed_lines(summary),
        *_team_lines(summary),
    ]


def _pause_lines(summary: RunSummary) -> list[str]:
    if not summary.num_pauses:
        return []
    return [
        f"paused by an operator {_count(summary.num_pauses, 'time')}, "
        f"{seconds(summary.paused_s)} in all: no part of any step"
    ]


def _team_lines(summary: RunSummary) -> list[str]:
    rounds = summary.rounds
    if rounds is None:
        return []
    beside = (
        ""
        if rounds.took_median_s is None
        else f", {seconds(rounds.took_median_s)} each in the background"
    )
    failed = f", {rounds.num_failed} counted nothing" if rounds.num_failed else ""
    return [
        f"{_count(summary.num_teams, 'team')} over the run, held together by "
        f"{', '.join(rounds.modes)}: merged {_count(rounds.num_committed, 'time')}{beside}{failed}; "
        f"{rounds.sent_bytes / 1e6:.3g} MB between them. Steps are each team's own"
    ]


def _at_least(summary: RunSummary) -> str:
    """What the logs lack may have been more."""
    return "at least " if summary.num_missing_events else ""


def _name(summary: RunSummary) -> str:
    return summary.run or "run"


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _count(number: int, noun: str) -> str:
    return counted(number, noun, f"{noun}s")


def counted(number: int, one: str, many: str) -> str:
    """A number, and the words that fit it."""
    return f"{number} {one if number == 1 else many}"


def _speed_lines(summary: RunSummary) -> list[str]:
    if summary.throughput is None:
        return ["no step was finished: there is nothing to measure"]
    skipped = summary.skipped_steps
    without = f", without steps {skipped[0]} to {skipped[1]}" if skipped else ""
    lines = [
        f"throughput {number(summary.throughput)} samples/s; step {seconds(summary.step_mean_s)} "
        f"(on average), {seconds(summary.step_median_s)} (median), "
        f"{seconds(summary.step_p90_s)} (90 %), "
        f"over {_count(summary.num_steady_steps, 'step')}{without}"
    ]
    if summary.efficiency is not None:
        lines.append(
            f"efficiency {percent(summary.efficiency)} of the compute-only optimum "
            f"({seconds(summary.optimum_s)} per step, from {summary.optimum_basis})"
        )
    return lines


def worker_table(summary: RunSummary) -> Table:
    """One row per worker: where its time goes, per steady step."""
    is_paced = any(worker.pacing for worker in summary.workers)
    columns = ("worker", "node", "share", "compute", "data", "exchange", "wait", "update", "other")
    return Table(
        title="milliseconds per step",
        columns=(*columns, "speed", "asked") if is_paced else columns,
        rows=[_worker_row(worker, is_paced=is_paced) for worker in summary.workers],
    )


def _worker_row(worker: WorkerSummary, *, is_paced: bool) -> tuple[str, ...]:
    spent, num_steps = worker.spent, worker.num_steady_steps
    times = (spent.compute_s, spent.data_s, spent.exchange_s, spent.wait_s, spent.update_s)
    row = (
        str(worker.worker),
        worker.node or "-",
        number(worker.share),
        *(_milliseconds(time, num_steps) for time in (*times, spent.other_s)),
    )
    if not is_paced:
        return row
    if worker.pacing is None:
        return (*row, "-", "-")
    return (*row, f"{worker.pacing.achieved:.3g}", f"{worker.pacing.asked:.3g}")


def _milliseconds(time_s: float, num_steps: int) -> str:
    """Three digits, and nothing below a microsecond."""
    return number(round(time_s / num_steps * 1e3, 3)) if num_steps else "-"


def waiting_lines(summary: RunSummary) -> list[str]:
    """How much time was lost waiting, and because of whom, worst first."""
    if summary.wait_fraction is None or len(summary.workers) < 2:
        return []
    lines = [
        f"lost waiting: {seconds(summary.wait_s)} of all workers' time "
        f"({percent(summary.wait_fraction)})"
    ]
    guilty = sorted(summary.workers, key=lambda worker: (-worker.caused_wait_s, worker.worker))
    lines += [
        f"for worker {worker.worker}{f' ({worker.node})' if worker.node else ''}: "
        f"{seconds(worker.caused_wait_s)}, last in {worker.waited_for_steps} of "
        f"{_count(summary.num_steady_steps, 'step')}"
        for worker in guilty
        if worker.caused_wait_s > 0
    ]
    return lines


def view_table(summary: RunSummary) -> Table:
    """What was allocated, why, and what came of it."""
    return Table(
        title="allocations",
        columns=(
            *(("team",) if summary.num_teams > 1 else ()),
            *("view", "from step", "shares", "samples/s", "efficiency", "reason"),
        ),
        rows=[_view_row(view, with_team=summary.num_teams > 1) for view in summary.views],
    )


def _view_row(view: ViewSummary, *, with_team: bool) -> tuple[str, ...]:
    return (
        *((str(view.team),) if with_team else ()),
        str(view.view),
        str(view.step),
        _shares(view.shares),
        number(view.throughput),
        percent(view.efficiency),
        view.reason or "-",
    )


def _shares(shares: Sequence[int], *, limit: int = 8) -> str:
    shown = " ".join(str(share) for share in shares[:limit])
    return shown if len(shares) <= limit else f"{shown} … ({len(shares)} workers)"


def decision_lines(summary: RunSummary) -> list[str]:
    """Each decision with its reason and numbers."""
    lines = []
    for decision in summary.decisions:
        numbers = ", ".join(f"{name} {number(value)}" for name, value in decision.numbers.items())
        because = f": {decision.reason}" if decision.reason else ""
        lines.append(
            f"after {seconds(decision.at_s)}, {decision.what}{because}"
            f"{f' [{numbers}]' if numbers else ''}"
        )
    return lines


def plan_lines(summary: RunSummary) -> list[str]:
    """What was planned, against what was measured, and why it was planned so."""
    if summary.plan is None:
        return []
    return [*plan_headline(summary.plan), *(f"- {one}" for one in summary.plan.reasons)]


def plan_headline(plan: PlanSummary) -> list[str]:
    """The plan in one line, and what would be faster, if anything."""
    return [planned_against_measured(plan), *([f"hint: {plan.hint}"] if plan.hint else [])]


def planned_against_measured(plan: PlanSummary) -> str:
    """The plan in one line."""
    text = f"planned: {plan.chosen} ({plan.bound}), predicted step {seconds(plan.predicted_s)}"
    if plan.measured_s is None or plan.error is None:
        return f"{text}; no step was made by it"
    return (
        f"{text}, measured {seconds(plan.measured_s)} over {_count(plan.num_steps, 'step')} "
        f"({plan.error:+.0%})"
    )


def exit_lines(summary: RunSummary) -> list[str]:
    """How workers ended that did not end well."""
    return [
        f"worker {worker.worker}: {worker.exit}"
        for worker in summary.workers
        if worker.exit and not worker.exit.startswith("exit code 0")
    ]


def seconds(value: float | None) -> str:
    """A duration with three digits and a fitting unit."""
    if value is None:
        return "-"
    if abs(value) >= 120:
        return f"{value / 60:.1f} min"
    if abs(value) >= 1:
        return f"{value:.3g} s"
    if abs(value) >= 1e-3 or value == 0:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.3g} µs"


def number(value: float | None) -> str:
    """A number with three digits, or all before the point."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A fraction as a whole percentage."""
    return "-" if value is None else f"{value * 100:.0f} %"
