# SPDX-License-Identifier: Apache-2.0
"""`gangline simulate --replay`: a recorded run, put through the coordinator once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from rich.table import Table
from rich.text import Text

from gangline.cli.output import out, print_json
from gangline.coordinator.kept.recording import count_torn
from gangline.coordinator.server.input_log import FOLDER, recorded_files
from gangline.simulation.recorded import Difference, Replayed, replay
from gangline.spec.errors import LogError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

_MOST_SHOWN = 10
"""Of so many outputs, and decisions, are shown at most."""


class OtherOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """An input that gave something else than was recorded."""

    file: str
    number: int
    t: float
    given: dict[str, Any]
    outputs: list[dict[str, Any]]
    """What it gives now."""


class ReplaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `gangline simulate --replay --json` prints."""

    run_dir: str
    files: int
    inputs: dict[str, int]
    """How many there were of each kind."""
    outputs: dict[str, int]
    span_s: float
    """From the first input to the last."""
    decisions: list[str]
    stumbles: list[str]
    """Errors of the coordinator that inputs laid open."""
    differences: list[OtherOutputs]
    """At most one per file: what follows it follows from it."""
    torn: list[str] = []
    """Files that end in the middle of an item: what was recorded behind it is missing."""


def replay_run(run_dir: Path, *, as_json: bool) -> bool:
    """Replays a run and says what came of it; whether everything was as recorded."""
    files = recorded_files(run_dir)
    if not files:
        raise UsageError(
            f"{run_dir} holds no recording of a coordinator ({FOLDER}/*.msgpack): give the run folder "
            "of `gangline run` or `gangline up`"
        )
    try:
        found = replay((str(path), path.read_bytes()) for path in files)
        torn = [str(path) for path in files if count_torn(path.read_bytes())]
    except OSError as error:
        raise LogError(f"the recording in {run_dir / FOLDER} cannot be read: {error}") from error
    summary = _summarize(run_dir, found, torn)
    if as_json:
        print_json(summary)
    else:
        _print(summary)
    return not summary.differences


def _summarize(run_dir: Path, found: Replayed, torn: list[str]) -> ReplaySummary:
    return ReplaySummary(
        run_dir=str(run_dir),
        files=found.files,
        inputs=dict(sorted(found.inputs.items())),
        outputs=dict(sorted(found.outputs.items())),
        span_s=(found.end_s or 0.0) - (found.begin_s or 0.0),
        decisions=[decision.reason for decision in found.decisions],
        stumbles=found.stumbles,
        differences=[_other(one) for one in found.differences],
        torn=torn,
    )


def _other(one: Difference) -> OtherOutputs:
    return OtherOutputs(
        file=one.path,
        number=one.number,
        t=one.t,
        given=msgspec.to_builtins(one.given),
        outputs=[msgspec.to_builtins(output) for output in one.outputs],
    )


def _print(summary: ReplaySummary) -> None:
    count, files = sum(summary.inputs.values()), summary.files
    said = [
        f"{count} inputs of {summary.run_dir} ({files} file{'s' * (files > 1)}, {summary.span_s:.1f} s "
        "of the job) were put through the coordinator once more"
    ]
    if not summary.differences:
        said.append("every output is the one that was recorded")
    said += [
        f"{path} ends in the middle of an input: its coordinator was killed, or the file was cut; what "
        "came behind it is not known"
        for path in summary.torn
    ]
    said += [
        f"an input laid open an error of the coordinator: {error}"
        for error in summary.stumbles[:_MOST_SHOWN]
    ]
    said += _left_out(len(summary.stumbles), "errors", which="the first")
    for one in summary.differences:
        said.append(f"input {one.number} of {one.file} gives something else than was recorded:")
        said.append(f"  {one.given}")
        said += [f"  -> {output}" for output in one.outputs[:_MOST_SHOWN]] or ["  -> nothing"]
        said += _left_out(len(one.outputs), "outputs", which="the first")
    for line in said:
        out().print(Text(line))
    table = Table(box=None, pad_edge=False)
    for column in ("inputs", "", "outputs", ""):
        table.add_column(column, justify="left" if column else "right")
    rows = list(summary.inputs.items()), list(summary.outputs.items())
    for number in range(max(map(len, rows))):
        cells = [side[number] if number < len(side) else ("", "") for side in rows]
        table.add_row(*(str(cell) for pair in cells for cell in pair))
    out().print(table)
    for line in decision_lines(summary.decisions):
        out().print(Text(line))


def decision_lines(decisions: list[str]) -> list[str]:
    """The last decisions, and how many there are besides."""
    left_out = _left_out(len(decisions), "decisions", which="the last")
    return [*left_out, *(f"decided: {reason}" for reason in decisions[-_MOST_SHOWN:])]


def _left_out(count: int, what: str, *, which: str) -> list[str]:
    """What is said where not all are shown."""
    if count <= _MOST_SHOWN:
        return []
    return [f"{which} {_MOST_SHOWN} of {count} {what} are shown; --json prints all"]
