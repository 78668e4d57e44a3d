# SPDX-License-Identifier: Apache-2.0
"""`gangline doctor`: what this machine can do, and what to do about what is missing."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from gangline.cli.output import JsonFlag, out, print_json
from gangline.profiling.advice import Finding, Status, advise

STYLES = {
    Status.OK: "green",
    Status.LIMITED: "yellow",
    Status.MISSING: "yellow",
    Status.BROKEN: "bold red",
}


def register(app: typer.Typer) -> None:
    """Adds the verb to the command line."""
    app.command("doctor")(doctor)


def doctor(as_json: JsonFlag = False) -> None:
    """Say what this machine can do, and what to do about what is missing."""
    from gangline.profiling.machine import inspect_machine

    report = inspect_machine()
    findings = advise(report)
    if as_json:
        print_json(report)
    else:
        out().print(_table(findings, host=report.host), soft_wrap=False)
    if any(finding.status is Status.BROKEN for finding in findings):
        raise typer.Exit(1)


def _table(findings: list[Finding], *, host: str) -> Table:
    table = Table(title=Text(f"gangline doctor on {host}"), title_justify="left")
    for heading in ("what", "finding", "", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        # Text, since a plain string would lose the brackets of `gangline[demo]` as markup.
        table.add_row(
            finding.what,
            Text(finding.found),
            Text(finding.status.value, style=STYLES[finding.status]),
            Text(finding.advice),
        )
    return table
