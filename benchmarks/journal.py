# SPDX-License-Identifier: Apache-2.0
"""Rows of a benchmark, written down as they come: what was measured before it was cut off is kept.

journal = Journal("loops_graph")
journal.add(scheme="GSS", seconds=0.2)          # a line of results/loops_graph.jsonl
rows = read_journal(Path("results/loops_graph.jsonl"))
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from harness import RESULTS, machine_facts

if TYPE_CHECKING:
    from pathlib import Path


class Journal:
    """A file of JSON lines. The first one says which machine this is."""

    def __init__(self, name: str) -> None:
        RESULTS.mkdir(parents=True, exist_ok=True)
        self.path = RESULTS / f"{name}.jsonl"
        self.path.write_text("", encoding="utf-8")
        self.add(machine=machine_facts())

    def add(self, **row: Any) -> None:
        """Written at once."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read_journal(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The machine, and the rows."""
    first, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return first["machine"], rows
