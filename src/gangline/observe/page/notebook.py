# SPDX-License-Identifier: Apache-2.0
"""A run's report as an object that shows itself in a notebook."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.observe.page.accounts import Accounts
from gangline.observe.page.bill import Bill, Price, make_bill
from gangline.observe.page.columns import Columns
from gangline.observe.page.document import bill_headline, run_document
from gangline.observe.page.making import fold_run
from gangline.observe.page.page import write_page

if TYPE_CHECKING:
    import os

_HEIGHT = 900


class RunReport:
    """What a run did, and what it cost."""

    def __init__(self, run_dir: Path, price: Price) -> None:
        self._fold, self._notices = fold_run(run_dir)
        self._price = price
        self._html = ""
        self.run_dir = run_dir
        self.bill: Bill = make_bill(Accounts(self._fold), price)
        """Where the time went, the dearest first."""

    @property
    def html(self) -> str:
        """The page, as `gangline report -o` writes it."""
        if not self._html:
            columns = Columns()
            document = run_document(
                self._fold, columns=columns, price=self._price, notices=self._notices
            )
            self._html = write_page(f"{document['run']} – gangline", {"runs": [document]}, columns)
        return self._html

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page to a file."""
        Path(path).write_text(self.html, encoding="utf-8")

    def __repr__(self) -> str:
        items = [f"- {item.text}. {item.advice}" for item in self.bill.items]
        return "\n".join([f"{self.run_dir}: {bill_headline(self.bill)}", *items])

    def _repr_html_(self) -> str:
        # In a frame of its own: its styles and scripts must not meet those of the notebook.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" '
            f'style="width:100%;height:{_HEIGHT}px;border:0" title="gangline report"></iframe>'
        )


def report(
    run_dir: str | os.PathLike[str], *, price: float = 0.0, currency: str = "€"
) -> RunReport:
    """The report of a run; a notebook shows its charts, `print` its bill.

        gangline.report("runs/digits", price=0.6)

    `price` is what an hour of a node costs.
    """
    return RunReport(Path(run_dir), Price(per_hour=price, currency=currency))
