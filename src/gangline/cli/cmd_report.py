# SPDX-License-Identifier: Apache-2.0
"""`gangline report RUN_DIR`: what a run did, how well, and who was waited for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from gangline.cli.output import JsonFlag, out, print_json, say
from gangline.cli.pages import CurrencyFlag, PriceFlag, parse_price, save_page
from gangline.eventlog import LogNotes, read_run
from gangline.observe import RunSummary, draw_bars, summarize, tracing, worker_bars
from gangline.observe.page import make_page
from gangline.observe.reading import notices
from gangline.observe.report import (
    Table,
    decision_lines,
    exit_lines,
    headline,
    plan_lines,
    view_table,
    waiting_lines,
    worker_table,
)
from gangline.observe.served import served_lines
from gangline.spec.errors import UsageError


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("report")(report)


def report(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run, such as runs/digits.")],
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a trace for ui.perfetto.dev to FILE."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the report as a page with charts instead."
        ),
    ] = None,
    price: PriceFlag = None,
    currency: CurrencyFlag = "€",
    as_json: JsonFlag = False,
) -> None:
    """Say what a run did: throughput, efficiency, and who was waited for."""
    _refuse_money_without_page(output, price, currency)
    if output is not None:
        save_page(make_page(run_dir, price=parse_price(price, currency)), output)
    if trace is not None:
        write_trace(run_dir, trace)
    if as_json:
        print_json(read_summary(run_dir))
    elif output is not None:
        say(f"report: {output}")
    else:
        print_summary(read_summary(run_dir), out())


def _refuse_money_without_page(output: Path | None, price: list[str] | None, currency: str) -> None:
    if output is None and (price or currency != "€"):
        raise UsageError("--price and --currency are for the page: give -o report.html, too")


def read_summary(run_dir: Path) -> RunSummary:
    """The summary of the logs in a run folder, with warnings about what could not be read."""
    notes: list[LogNotes] = []
    summary = summarize(read_run(run_dir, notes=notes))
    return msgspec.structs.replace(
        summary, warnings=[*summary.warnings, *(line for note in notes for line in notices(note))]
    )


def write_trace(run_dir: Path, path: Path) -> None:
    """Writes the run as a trace, in the format that the file's name asks for."""
    try:
        tracing.write_trace(read_run(run_dir, notes=[]), path)
    except OSError as error:
        raise UsageError(
            f"cannot write the trace to {path}: {error.strerror}; "
            f"give a file in a folder that exists"
        ) from error


def print_summary(summary: RunSummary, console: Console) -> None:
    """Prints the summary for people."""
    first, *rest = headline(summary)
    console.print(Text(first, "bold"))
    _print_lines(rest, console)
    if summary.workers:
        _print_table(worker_table(summary), console)
    chart = draw_bars(worker_bars(summary))
    if chart:
        _print_lines(["", *chart.splitlines()], console)
    _print_section(waiting_lines(summary), console)
    _print_section(served_lines(summary.served), console)
    if summary.views:
        _print_table(view_table(summary), console)
    _print_section(plan_lines(summary), console)
    decisions = decision_lines(summary)
    _print_section(["decisions", *decisions] if decisions else [], console)
    exits = exit_lines(summary)
    _print_section(["ended badly", *exits] if exits else [], console)
    for warning in summary.warnings:
        console.print(Text.assemble(("warning: ", "yellow"), warning))


def _print_section(lines: Sequence[str], console: Console) -> None:
    """A first line, and what belongs to it, indented."""
    if lines:
        first, *rest = lines
        _print_lines(["", first, *(f"  {line}" for line in rest)], console)


def _print_lines(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(Text(line))


def _print_table(table: Table, console: Console) -> None:
    shown = RichTable(box=None, pad_edge=False)
    *narrow, last = table.columns
    for column in narrow:
        is_text = column in ("node", "shares")
        shown.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    shown.add_column(last, justify="left" if last == "reason" else "right")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    _print_lines(["", table.title], console)
    console.print(shown, soft_wrap=False)
