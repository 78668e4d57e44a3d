# SPDX-License-Identifier: Apache-2.0
"""Pages that commands write: prices as they are given, and the report at the end of a job."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.files.plainfile import replace_plain
from gangline.spec.errors import GanglineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gangline.observe.page import Price

REPORT_NAME = "report.html"
REPORT_LIMIT_S = 10.0
"""How long the report at the end of a job may take; a longer one is left to `gangline report`."""

PriceFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="[NODE=]PRICE",
        help="What an hour of a node costs; with NODE=, of that one. May be repeated.",
    ),
]
CurrencyFlag = Annotated[str, typer.Option(help="The sign of the money that prices are in.")]

_log = logging.getLogger(__name__)


def parse_price(given: Sequence[str] | None, currency: str) -> Price:
    """The price that flags such as `0.6` and `node3=1.2` give."""
    from gangline.observe.page import Price

    per_hour, of_node = 0.0, {}
    for text in given or ():
        node, _, amount = text.rpartition("=")
        try:
            value = float(amount)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise UsageError(
                f"--price {text}: {amount!r} is no price; give what an hour costs, such as "
                "--price 0.6, or --price node3=1.2 for one node"
            )
        if node:
            of_node[node] = value
        else:
            per_hour = value
    return Price(per_hour=per_hour, of_node=of_node, currency=currency)


def save_page(text: str, path: Path) -> None:
    """Writes a page in one piece: where that fails, what was there before stays."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(text.encode())  # a pipe, say
        else:
            replace_plain(path, text.encode())
    except OSError as error:
        raise UsageError(
            f"cannot write the page to {path}: {error.strerror}; give a file in a folder that exists"
        ) from error


def report_at_end(run_dir: Path) -> tuple[Path | None, str]:
    """Writes the report of a job that has ended; None, and why, where that was not possible.

    It comes after the job, whose outcome it must not touch: whatever goes wrong here is only told.
    """
    from gangline.observe.page import make_page

    path = run_dir / REPORT_NAME
    try:
        save_page(make_page(run_dir, limit_s=REPORT_LIMIT_S), path)
    except (GanglineError, KeyboardInterrupt) as error:
        return None, str(error) or "it was interrupted"
    except Exception as error:
        _log.debug("no report", exc_info=True)
        return None, f"{type(error).__name__}: {error}"
    return path, ""
