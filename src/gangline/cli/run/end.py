# SPDX-License-Identifier: Apache-2.0
"""What `gangline run` says at the end. `gangline report` says more, from the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from gangline.cli.output import err, say
from gangline.cli.pages import report_at_end
from gangline.engines.logtail import last_lines
from gangline.eventlog import read_run
from gangline.observe import RunSummary, summarize
from gangline.observe.exclusions import exclusion_lines, find_exclusions
from gangline.observe.report import plan_headline
from gangline.spec.errors import LogError

if TYPE_CHECKING:
    from gangline.engines.job import Job
    from gangline.engines.result import JobResult, WorkerResult

_NUM_LAST_LINES = 10


def print_end(
    job: Job, result: JobResult, *, show_traceback: bool, with_report: bool = False
) -> None:
    """Why the job ended, what it came to, and where the rest can be read."""
    if result.status == "failed" and result.cause is not None:
        _print_cause(job, result.cause, show_traceback=show_traceback)
    elif result.status == "interrupted":
        err().print(Text(f"interrupted: {result.reason}; all workers have ended", "yellow"))
    elif result.status == "failed":
        err().print(Text(result.reason, "bold red"))
    elif any(worker.has_failed for worker in result.workers):
        err().print(Text(result.reason, "yellow"))
    summary = read_summary(job.run_dir)
    for line in summary_lines(summary) if summary is not None else []:
        say(line)
    say(f"run folder: {shown_path(job.run_dir)}")
    if with_report and summary is not None and summary.num_steps:
        say(report_line(job.run_dir))


def report_line(run_dir: Path) -> str:
    """Writes the page of a run that has ended, and says where it is, or why there is none."""
    path, problem = report_at_end(run_dir)
    return f"no report: {problem}" if path is None else f"report: {shown_path(path)}"


def end_document(job: Job, result: JobResult, *, with_report: bool = False) -> dict[str, Any]:
    """The same for programs."""
    summary = read_summary(job.run_dir)
    page = None
    if with_report and summary is not None and summary.num_steps:
        page, _ = report_at_end(job.run_dir)
    return {
        "run": job.run,
        "run_dir": str(job.run_dir),
        "status": result.status,
        "reason": result.reason,
        "wall_s": result.wall_s,
        "scale": job.scale,
        "speeds": job.speeds,
        "cause": None if result.cause is None else result.cause.worker,
        "workers": [
            {**msgspec.to_builtins(worker), "reason": worker.reason} for worker in result.workers
        ],
        "summary": None if summary is None else _summary_document(summary),
        "report": None if page is None else str(page),
    }


def read_summary(run_dir: Path) -> RunSummary | None:
    """The run's totals, also of one that was killed; None where a log is beyond reading."""
    try:
        return summarize(read_run(run_dir, notes=[]))
    except LogError:
        return None


def summary_lines(summary: RunSummary) -> list[str]:
    """Steps, pace, who was excluded, the plan, and how well the emulation hit its speeds."""
    if summary.num_steps == 0:
        if summary.status != "done":
            return []
        return ["no steps were recorded (does the script call gangline.prepare?)"]
    text = f"{summary.num_steps} steps, {summary.samples} samples"
    if summary.throughput is not None and summary.step_median_s is not None:
        step_ms = summary.step_median_s * 1000
        text += f", {summary.throughput:,.0f} samples/s, {step_ms:,.1f} ms/step"
    plan = [] if summary.plan is None else plan_headline(summary.plan)
    warnings = [f"warning: {one}" for one in summary.warnings]
    excluded = exclusion_lines(summary.decisions)
    return [text, *warnings, *excluded, *plan, *_pacing_lines(summary)]


def _pacing_lines(summary: RunSummary) -> list[str]:
    paced = [(worker.worker, worker.pacing) for worker in summary.workers if worker.pacing]
    if not paced:
        return []
    errors = {worker: pacing.achieved / pacing.asked - 1 for worker, pacing in paced}
    worst = max(errors, key=lambda worker: abs(errors[worker]))
    speeds = ", ".join(f"{pacing.achieved:.3g} of {pacing.asked:.3g}" for _, pacing in paced)
    return [f"emulated speeds achieved: {speeds} (worst: worker {worst}, {errors[worst]:+.1%})"]


def _summary_document(summary: RunSummary) -> dict[str, Any]:
    paced = [(worker.worker, worker.pacing) for worker in summary.workers if worker.pacing]
    return {
        "steps": summary.num_steps,
        "samples": summary.samples,
        "throughput": summary.throughput,
        "step_median_s": summary.step_median_s,
        "efficiency": summary.efficiency,
        "excluded": find_exclusions(summary.decisions),
        "plan": summary.plan,
        "pacing": [
            {"worker": worker, "asked": pacing.asked, "achieved": pacing.achieved}
            for worker, pacing in paced
        ],
    }


def _print_cause(job: Job, cause: WorkerResult, *, show_traceback: bool) -> None:
    console = err()
    console.print(Text(f"worker {cause.worker} failed: {cause.reason}", "bold red"))
    log = job.log_of(cause.worker)
    shown = cause.traceback or last_lines(log, _NUM_LAST_LINES)
    if shown and show_traceback:
        console.print(Text(shown))
    if len(job.speeds) > 1:
        console.print(Text("the other workers were stopped"))
    console.print(Text(f"all it wrote: {shown_path(log)}"))


def shown_path(path: Path) -> Path:
    """Relative to the working folder, where it is inside it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
