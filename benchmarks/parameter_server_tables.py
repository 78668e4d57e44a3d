# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/measured.md about parameter servers, from what the benchmarks have written.

    python benchmarks/parameter_server_tables.py [FOLDER]     # default: benchmarks/results

Takes what is there of parameter_server.jsonl, parameter_server_throughput.json and
parameter_server_prediction.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from harness import RESULTS, Comparison
from paced_teams import table
from parameter_server_cells import (
    AIMS,
    CONTENDERS,
    SCENARIOS,
    Book,
    aimed,
    interval,
    memory_table,
    staleness_of,
    to_target_s,
)
from parameter_server_prediction import NAME as PREDICTION
from sync_prediction import rank_correlation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from parameter_server_cells import Taken

THROUGHPUT = "parameter_server_throughput"


def by_scenario(
    book: Book, model: str, cell: Callable[[Sequence[Taken], str, str], str]
) -> str | None:
    """A row for each contender, and a column for each scenario that was measured."""
    named = [s for s in SCENARIOS if any(book.of(s, model, c) for c in CONTENDERS)]
    rows = []
    for contender in CONTENDERS:
        found = {name: book.of(name, model, contender) for name in named}
        if any(found.values()):
            made = [cell(found[n], n, contender) if found[n] else "" for n in named]
            rows.append([f"`{contender}`" if contender != "DDP" else contender, *made])
    return table(["", *named], rows) if rows else None


def counted(found: Sequence[Taken]) -> str:
    return f"{interval([to_target_s(one) for one in found])} ({len(found)})"


def predicted_table(book: Book, model: str, path: Path) -> str | None:
    """Predicted over measured time of all epochs, and how well the order was known."""
    said = json.loads(path.read_text())["predicted"].get(model, {})

    def ratio(found: Sequence[Taken], scenario: str, contender: str) -> str:
        guess = said.get(scenario, {}).get(contender)
        if guess is None:
            return "–"
        return f"{guess / median(one.seconds for one in found):.2f} ({guess:.1f} s)"

    made = by_scenario(book, model, ratio)
    if made is None:
        return None
    orders = []
    for scenario, guesses in said.items():
        known = [c for c in guesses if book.of(scenario, model, c)]
        truth = [median(one.seconds for one in book.of(scenario, model, c)) for c in known]
        if len(known) > 1:
            order = rank_correlation([guesses[c] for c in known], truth)
            orders.append(f"{scenario} {order:.2f}")
    return f"{made}\n\nRank correlations: {', '.join(orders)}."


def throughput_table(path: Path) -> str:
    """GB/s per server, and the part of what a plain socket carries."""
    found = msgspec.json.decode(path.read_bytes(), type=dict[str, Comparison])
    rows: dict[str, list[str]] = {}
    heads: list[str] = []
    for title, comparison in found.items():
        way, transport, of = title.split(", ")
        plain = comparison.rows[0]
        for row in comparison.rows:
            if row.name.endswith("(again)"):
                continue
            name = f"{row.name} ({way})" if row is plain else row.name
            head = f"{transport}, {of.split()[0]}"
            heads += [] if head in heads else [head]
            ratio = "" if row is plain else f" ({row.speedup.median:.2f})"
            rate = row.extras["GB/s per server"]
            rows.setdefault(name, []).append(f"{rate:.2f}{ratio}")
    return table(["GB/s per server", *heads], [[name, *cells] for name, cells in rows.items()])


def tables(folder: Path) -> str:
    """All of them, with a line before each."""
    book = Book(folder / "parameter_server.jsonl")
    parts: list[tuple[str, str | None]] = []
    for model in AIMS:
        goal = "to 95 %" if model == "lenet" else "to the loss"
        parts += [
            (
                f"{aimed(model, False)}. Seconds {goal}, median [95 %] (seeds):",
                by_scenario(book, model, lambda found, *_: counted(found)),
            ),
            (
                "Seconds of all epochs:",
                by_scenario(book, model, lambda found, *_: interval([t.seconds for t in found])),
            ),
            (
                "Learning rates that were chosen, and the median accuracy at the end:",
                by_scenario(book, model, rate_and_accuracy),
            ),
            (
                "Staleness of updates:",
                by_scenario(book, model, lambda found, *_: staleness_of(found)),
            ),
            (
                "Samples computed again:",
                by_scenario(
                    book, model, lambda f, *_: f"{median(t.dropped_samples for t in f):.0f}"
                ),
            ),
        ]
        if (path := folder / f"{PREDICTION}.json").exists():
            head = "The simulator's time of all epochs over the measured one:"
            parts.append((head, predicted_table(book, model, path)))
    parts.append(("Memory, MB: growth in the first steps, and at most:", memory_table(book)))
    if (path := folder / f"{THROUGHPUT}.json").exists():
        head = "Push and pull; in brackets, the part of what a plain socket carries at that time:"
        parts.append((head, throughput_table(path)))
    errors = [f"- {one.cell}: {one.error[-300:]}" for one in book.taken if one.error]
    parts.append(("Failed runs:", "\n".join(errors) or None))
    return "\n\n".join(f"{head}\n\n{made}" for head, made in parts if made) + "\n"


def rate_and_accuracy(found: Sequence[Taken], *_: str) -> str:
    best = median(one.judged.accuracy for one in found if one.judged is not None)
    return f"{found[-1].cell.rate:g}, {best:.1%}"


if __name__ == "__main__":
    print(tables(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS))
