# SPDX-License-Identifier: Apache-2.0
"""`gangline demo`: an uneven cluster out of this machine trains a real model, twice."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gangline.cli.output import err, out, print_json, say
from gangline.cli.run.end import report_line
from gangline.cli.run.progress import ScreenWatcher
from gangline.emulation.scaling import describe_scale, scale_speeds
from gangline.engines import run_job
from gangline.engines.job import count_cores
from gangline.eventlog import read_run
from gangline.launch import prepared, resolve
from gangline.launch.program import find_program
from gangline.observe import RunSummary, draw_bars, summarize, worker_bars
from gangline.spec.cluster import Cluster
from gangline.spec.config import FLAT, BatchConfig, ExchangeConfig, RunConfig
from gangline.spec.errors import LaunchError

SPEEDS = (1.0, 0.5, 0.2, 0.1)
GLOBAL_BATCH = 256
_SCRIPT = Path(__file__).with_name("demo_train.py")


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo found out."""

    accuracy: float
    """On the test digits, after the balanced run."""
    throughput_equal: float
    """Samples per second with equal shares."""
    throughput_balanced: float
    """Samples per second with shares that follow the measured speeds, once they have settled."""
    speedup: float
    efficiency: float
    """Of the balanced run: the compute-only optimum over the measured step time."""
    shares: list[int]
    """The balanced run's last cut of the global batch."""
    speeds: list[float]
    scale: float
    run_dirs: list[str]


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("demo")(demo)


def demo(
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write the numbers to this file as JSON (- prints them)."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Save the result as a picture, too (SVG).")
    ] = None,
    run_dir: Annotated[Path, typer.Option(help="Where the run folders go.")] = Path("runs"),
    equal_epochs: Annotated[int, typer.Option(min=2, help="Epochs with equal shares.")] = 8,
    balanced_epochs: Annotated[int, typer.Option(min=3, help="Epochs, balanced.")] = 50,
) -> None:
    """Train LeNet-5 on four emulated, unlike nodes: first with equal shares, then balanced."""
    is_quiet = json_file is not None and str(json_file) == "-"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    scaled = scale_speeds(list(SPEEDS), count_cores())
    if not is_quiet:
        say(
            "Four emulated nodes of speeds 1, 0.5, 0.2 and 0.1 train LeNet-5 on handwritten digits."
        )
        if text := describe_scale(SPEEDS, scale=scaled.scale, cores=count_cores()):
            say(text)
    summaries, accuracies, folders = {}, {}, []
    for allocation, epochs in (("equal", equal_epochs), ("balanced", balanced_epochs)):
        folder = (run_dir / f"demo-{stamp}-{allocation}").resolve()
        folders.append(folder)
        if not is_quiet:
            say(f"\n{allocation} shares, {epochs} epochs of {GLOBAL_BATCH}-sample batches:")
        summaries[allocation] = _train(folder, allocation, epochs=epochs, is_quiet=is_quiet)
        accuracies[allocation] = json.loads((folder / "result.json").read_text())["accuracy"]
    result = _result(summaries, accuracies, folders, scale=scaled.scale)
    if not is_quiet:
        _show(result, summaries, out())
        for folder in folders:
            say(report_line(folder))
    if picture is not None:
        _save_picture(picture, result, summaries)
    if json_file is not None:
        if is_quiet:
            print_json(result)
        else:
            json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2))


def _train(folder: Path, allocation: str, *, epochs: int, is_quiet: bool) -> RunSummary:
    config = RunConfig(
        run=folder.name,
        cluster=Cluster.of_speeds(SPEEDS),
        batch=BatchConfig(allocation=allocation),
        exchange=ExchangeConfig(structure=FLAT),
    )
    arguments = ["--epochs", str(epochs), "--global-batch", str(GLOBAL_BATCH)]
    arguments += ["--result", str(folder / "result.json")]
    program = find_program(_SCRIPT, arguments, None, verb="demo")
    console = err() if is_quiet else out()
    with (
        prepared(resolve(config), program, run_dir=folder) as job,
        ScreenWatcher(job, console, show_progress=not is_quiet, show_output=False) as watcher,
    ):
        result = run_job(job, watcher=watcher)
    if result.status != "done":
        raise LaunchError(f"the demo's run {job.run} {result.status}: {result.reason}")
    return summarize(read_run(job.run_dir))


def _result(
    summaries: dict[str, RunSummary],
    accuracies: dict[str, float],
    folders: list[Path],
    *,
    scale: float,
) -> DemoResult:
    equal, balanced = summaries["equal"], summaries["balanced"]
    settled = max(balanced.views, key=lambda view: view.num_steps)
    throughput_equal = equal.throughput or 0.0
    throughput_balanced = settled.throughput or balanced.throughput or 0.0
    return DemoResult(
        accuracy=accuracies["balanced"],
        throughput_equal=throughput_equal,
        throughput_balanced=throughput_balanced,
        speedup=throughput_balanced / throughput_equal if throughput_equal else 0.0,
        efficiency=settled.efficiency or balanced.efficiency or 0.0,
        shares=balanced.views[-1].shares,
        speeds=list(SPEEDS),
        scale=scale,
        run_dirs=[str(folder) for folder in folders],
    )


def _show(result: DemoResult, summaries: dict[str, RunSummary], console: Console) -> None:
    for allocation, summary in summaries.items():
        console.print(Text(f"\n{allocation} shares: how the nodes spent a step", style="bold"))
        console.print(Text(draw_bars(worker_bars(summary))))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("accuracy on the test digits", f"{result.accuracy:.1%}")
    table.add_row("throughput, equal shares", f"{result.throughput_equal:,.0f} samples/s")
    table.add_row("throughput, balanced", f"{result.throughput_balanced:,.0f} samples/s")
    table.add_row("speed-up", f"{result.speedup:.2f} times", style="bold green")
    table.add_row("efficiency", f"{result.efficiency:.0%} of the compute-only optimum")
    shares = ", ".join(str(share) for share in result.shares)
    table.add_row(f"shares of the {GLOBAL_BATCH} samples", shares)
    console.print()
    console.print(table)
    console.print()


def _save_picture(path: Path, result: DemoResult, summaries: dict[str, RunSummary]) -> None:
    console = Console(record=True, file=io.StringIO(), width=84, highlight=False)
    _show(result, summaries, console)
    picture = console.export_svg(title="gangline demo")
    # rich points to fonts on the web; a picture must not load anything.
    path.write_text(re.sub(r"@font-face\s*\{.*?\}|<!--.*?-->", "", picture, flags=re.DOTALL))
