# SPDX-License-Identifier: Apache-2.0
"""From a run folder to its page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gangline.eventlog import LogNotes, read_run
from gangline.observe.page.bill import Price
from gangline.observe.page.columns import Columns
from gangline.observe.page.comparing import Comparison, compare_runs
from gangline.observe.page.document import run_document
from gangline.observe.page.fold import fold_events
from gangline.observe.page.page import write_page
from gangline.observe.reading import notices

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gangline.observe.page.fold import Fold

_NO_PRICE = Price()


def fold_run(run_dir: Path, *, limit_s: float | None = None) -> tuple[Fold, list[str]]:
    """The folded logs of a run, and what must be said about the logs."""
    deadline = None if limit_s is None else time.monotonic() + limit_s
    notes: list[LogNotes] = []
    fold = fold_events(read_run(run_dir, notes=notes), deadline=deadline)
    return fold, [line for note in notes for line in notices(note)]


def make_page(run_dir: Path, *, price: Price = _NO_PRICE, limit_s: float | None = None) -> str:
    """The page of a run; raises ReportTimeoutError where reading takes longer than the limit."""
    fold, said = fold_run(run_dir, limit_s=limit_s)
    columns = Columns()
    document = run_document(fold, price=price, notices=said, columns=columns)
    return write_page(f"{document['run']} – gangline", {"runs": [document]}, columns)


def compare_folders(
    run_dirs: Sequence[Path], *, price: Price = _NO_PRICE, with_page: bool = False
) -> tuple[Comparison, str]:
    """What runs come to beside each other, and the page that shows it; else an empty text."""
    folded = [fold_run(run_dir) for run_dir in run_dirs]
    names = [
        fold.timeline.run or path.name for (fold, _), path in zip(folded, run_dirs, strict=True)
    ]
    if len(set(names)) < len(names):
        names = [str(path) for path in run_dirs]
    comparison = compare_runs(names, [fold for fold, _ in folded], price=price)
    if not with_page:
        return comparison, ""
    columns = Columns()
    runs = [
        {**run_document(fold, price=price, notices=said, columns=columns), "run": name}
        for name, (fold, said) in zip(names, folded, strict=True)
    ]
    document = {"runs": runs, "comparison": comparison.document()}
    return comparison, write_page(f"{', '.join(names)} – gangline", document, columns)
