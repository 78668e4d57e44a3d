# SPDX-License-Identifier: Apache-2.0
"""`gangline compare RUN RUN…`: the figures and charts of runs side by side."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from gangline.cli.output import JsonFlag, out, print_json, say
from gangline.cli.pages import CurrencyFlag, PriceFlag, parse_price, save_page
from gangline.observe.page import Comparison, compare_folders
from gangline.spec.errors import UsageError

_MOST_RUNS = 8


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("compare")(compare)


def compare(
    run_dirs: Annotated[list[Path], typer.Argument(help="The folders of two runs, or more.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Also write a page with the charts side by side."
        ),
    ] = None,
    price: PriceFlag = None,
    currency: CurrencyFlag = "€",
    as_json: JsonFlag = False,
) -> None:
    """Compare runs: their figures, with ratios to the first one and intervals."""
    if not 2 <= len(run_dirs) <= _MOST_RUNS:
        raise UsageError(
            f"compare takes the folders of 2 to {_MOST_RUNS} runs, not {len(run_dirs)}: "
            "gangline compare runs/one runs/other"
        )
    comparison, page = compare_folders(
        run_dirs, price=parse_price(price, currency), with_page=output is not None
    )
    if output is not None:
        save_page(page, output)
    if as_json:
        print_json(comparison)
        return
    _print(comparison)
    if output is not None:
        say(f"page: {output}")


def _print(comparison: Comparison) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in comparison.runs:
        table.add_column(Text(name), overflow="fold")
    for line in comparison.lines:
        table.add_row(Text(line.label), *map(Text, line.cells()))
    out().print(table)
