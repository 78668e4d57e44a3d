# SPDX-License-Identifier: Apache-2.0
"""`gangline report` as people and programs call it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import typer
from synthetic_run import SyntheticRun
from typer.testing import CliRunner

from gangline.cli import cmd_report
from gangline.eventlog import log_path
from gangline.spec.errors import LogError, UsageError
from gangline.spec.event import Decision, PacingMeasured

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer()
app.callback()(lambda: None)
cmd_report.register(app)


def report(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["report", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    assert result.exit_code == 0
    return result.output


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = SyntheticRun([0.01, 0.02]).run_steps(40, shares=[8, 8], reason="equal [shares]")
    run.events += [
        Decision(t=run.now, what="shares 11 5", reason="they are unlike", numbers={"gain": 1.4}),
        PacingMeasured(t=run.now, worker=1, asked=0.5, achieved=0.49, cpu_s=1.0, slept_s=1.0),
    ]
    return run.end().write(tmp_path / "run")


def test_the_report_tells_the_run_in_a_screen(run_dir: Path) -> None:
    lines = report(run_dir).splitlines()
    assert lines[0] == "synthetic: done, 2 workers, 40 steps, 1 epoch, 640 samples in 7 s"
    assert lines[1] == (
        "throughput 91.4 samples/s; step 175 ms (on average), 175 ms (median), 175 ms (90 %), "
        "over 35 steps, "
        "without steps 0 to 4"
    )
    assert lines[2].startswith("efficiency 61 % of the compute-only optimum (107 ms per step")
    assert lines[4] == "milliseconds per step"
    assert lines[6].split() == ["0", "n0", "8", "80", "0", "10", "80", "5", "0", "-", "-"]
    assert lines[7].split() == ["1", "n1", "8", "160", "0", "10", "0", "5", "0", "0.49", "0.5"]
    text = "\n".join(lines)
    assert "n0 (worker 0)  ██████" in text
    assert "lost waiting: 2.8 s of all workers' time (23 %)" in text
    assert "for worker 1 (n1): 2.8 s, last in 35 of 35 steps" in text
    assert "equal [shares]" in text
    assert "after 7 s, shares 11 5: they are unlike [gain 1.4]" in text
    assert "warning" not in text
    assert len(lines) < 30


def test_json_is_one_document_with_all_numbers(run_dir: Path) -> None:
    document = json.loads(report(run_dir, "--json"))
    assert document["throughput"] == pytest.approx(16 / 0.175)
    assert document["workers"][1]["caused_wait_s"] == pytest.approx(2.8)
    assert document["views"][0]["shares"] == [8, 8]


def test_a_trace_is_written_when_asked_for(run_dir: Path, tmp_path: Path) -> None:
    report(run_dir, "--trace", tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert any(event["name"] == "wait" for event in trace["traceEvents"])


def test_the_error_says_where_when_the_trace_cannot_be_written(run_dir: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write the trace to .*give a file in a folder"):
        report(run_dir, "--trace", run_dir / "nowhere" / "trace.json")


def test_broken_and_newer_logs_are_read_with_a_warning(run_dir: Path) -> None:
    torn = log_path(run_dir, "worker 1")
    torn.write_bytes(torn.read_bytes()[:-5])
    with log_path(run_dir, "launcher").open("a") as file:
        file.write('{"kind":"moon_rose","t":1.0}\n')
    log_path(run_dir, "worker 7").touch()
    text = report(run_dir)
    assert "worker-1.jsonl ends in the middle of a line: still being written, or killed" in text
    assert "launcher.jsonl has 1 events of a newer gangline, left out: moon_rose" in text
    assert "worker-7.jsonl holds no event yet" in text
    assert "throughput 91.4 samples/s" in text


def test_the_error_names_the_folder_when_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no run folder .*nowhere"):
        report(tmp_path / "nowhere")
    with pytest.raises(LogError, match="there are no event logs in"):
        report(tmp_path)


def test_the_error_names_the_line_when_a_log_is_bad(run_dir: Path) -> None:
    with log_path(run_dir, "worker 0").open("a") as file:
        file.write("rubbish\n")
    with pytest.raises(LogError, match=r"worker-0\.jsonl, line 43: this is not an event"):
        report(run_dir)
