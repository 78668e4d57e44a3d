# SPDX-License-Identifier: Apache-2.0
"""Tables, and a picture, of what `loops_*.py` and `self_scheduled.py` have measured.

    python benchmarks/loops_figures.py results/*.jsonl > tables.md
    python benchmarks/loops_figures.py results/loops_graph_com-dblp.jsonl --picture loops.svg

Which table a file becomes, its name says. Files that were cut off give what they have.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import self_scheduled
from harness import paired_speedup
from journal import read_journal
from paced_teams import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Rows = list[dict[str, Any]]

WIDTH, HEIGHT, LEFT, BOTTOM = 900, 320, 60, 90


def grouped(rows: Rows, *names: str) -> dict[tuple[Any, ...], Rows]:
    """The rows that agree in these columns."""
    found: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name, "") for name in names), []).append(row)
    return found


def middle(rows: Iterable[dict[str, Any]], name: str = "seconds") -> float:
    """The median of a column."""
    return median(row[name] for row in rows)


def graph_table(rows: Rows) -> str:
    """Schemes with one queue, the fastest first, beside STATIC."""
    measured = [row for row in rows if "seconds" in row]
    found = grouped(measured, "scheme", "layout", "victim")
    static = [row["seconds"] for row in found["STATIC", "", ""]]
    shown = []
    for name, some in sorted(found.items(), key=lambda item: middle(item[1])):
        took = [row["seconds"] for row in some]
        count = min(len(took), len(static))
        ratio = paired_speedup(static[:count], took[:count])
        shown.append(
            [
                " ".join(filter(None, name)),
                f"{middle(some):.3f} s",
                f"{min(took):.3f} … {max(took):.3f}",
                f"{1 / ratio.median - 1:+.0%} [{1 / ratio.high - 1:+.0%}, {1 / ratio.low - 1:+.0%}]",
                f"{middle(some, 'imbalance'):.0%}",
                f"{middle(some, 'chunks'):.0f}",
            ]
        )
    heads = ["scheme", "time", "range", "beside STATIC [95 %]", "imbalance", "chunks per loop"]
    return table(heads, shown)


def grid_table(rows: Rows) -> str:
    """A row for each scheme, a column for each layout and rule: time and imbalance."""
    measured = [row for row in rows if "seconds" in row]
    columns = list(
        dict.fromkeys(sorted((r.get("layout", ""), r.get("victim", "")) for r in measured))
    )
    found = grouped(measured, "scheme", "layout", "victim")
    schemes = sorted(grouped(measured, "scheme").items(), key=lambda item: middle(item[1]))

    def cell(scheme: str, column: tuple[str, str]) -> str:
        some = found.get((scheme, *column), [])
        return f"{middle(some) * 1e3:.0f} ms, {middle(some, 'imbalance'):.0%}" if some else ""

    heads = ["scheme", *(" ".join(filter(None, one)) or "CENTRALIZED" for one in columns)]
    return table(
        heads, [[one, *(cell(one, column) for column in columns)] for (one,), _ in schemes]
    )


def overhead_table(rows: Rows) -> str:
    """What a chunk costs, by threads; and between nodes."""
    threads = grouped([row for row in rows if "threads" in row], "threads", "layout")
    shown = [
        [
            *name,
            f"{middle(some, 'us'):.1f} µs",
            f"{min(r['us'] for r in some):.1f} … {max(r['us'] for r in some):.1f}",
        ]
        for name, some in sorted(threads.items())
    ]
    nodes = [row for row in rows if "between_nodes_us" in row]
    if nodes:
        pulled, back = (middle(nodes, f"{name}_us") for name in ("between_nodes", "there_and_back"))
        shown.append(["between nodes", "", f"{pulled:.0f} µs", f"{back:.0f} µs there and back"])
    return table(["threads", "layout", "a chunk", "range"], shown)


def scaling_table(rows: Rows) -> str:
    """A table for each kind of work: seconds by contender and number of workers."""
    parts = []
    for (work,), some in grouped(rows, "work").items():
        alone = next(row["one_thread_s"] for row in some if "one_thread_s" in row)
        found = grouped([row for row in some if "who" in row], "who", "workers")
        counts = sorted({count for _, count in found})
        names = sorted(
            {who for who, _ in found},
            key=lambda who: middle(found.get((who, counts[-1]), [{"seconds": 9e9}])),
        )
        shown = [
            [who, *(f"{middle(found[who, n]):.2f} s" if (who, n) in found else "" for n in counts)]
            for who in names
        ]
        missing = sorted({row["missing"] for row in some if "missing" in row})
        left_out = f"\n\nNot installed: {', '.join(missing)}." if missing else ""
        parts.append(
            f"`{work}`, {alone:.2f} s without any of them:\n\n"
            + table(["who", *(f"{count} workers" for count in counts)], shown)
            + left_out
        )
    return "\n\n".join(parts)


def cells_table(rows: Rows) -> str:
    """The automated choice beside the best fixed one of each cell."""
    shown = []
    for (cell,), some in grouped([r for r in rows if r["stage"] == "comparing"], "cell").items():
        found = grouped(some, "scheme", "grain", "layout", "victim")
        automated = found.pop(("expert", "", "", ""))
        best = min(found, key=lambda name: middle(found[name]))
        count = min(len(automated), len(found[best]))
        took, fixed = ([r["seconds"] for r in one[:count]] for one in (automated, found[best]))
        behind = paired_speedup(took, fixed)
        worst = max(row["seconds"] for row in rows if row["cell"] == cell)
        shown.append(
            [
                cell,
                ", ".join(map(str, best)),
                f"{median(fixed):.3f} s",
                f"{behind.median - 1:+.1%} [{behind.low - 1:+.1%}, {behind.high - 1:+.1%}]",
                f"{worst / median(fixed) - 1:+.0%}",
            ]
        )
    return table(["cell", "best fixed choice", "its time", "automated [95 %]", "worst run"], shown)


def picture(rows: Rows) -> str:
    """Bars in the order of their time, AUTO in another colour, a dashed line at STATIC."""
    found = grouped([row for row in rows if "seconds" in row], "scheme")
    bars = sorted((middle(some), name) for (name,), some in found.items())
    static = next(seconds for seconds, name in bars if name == "STATIC")
    most = min(bars[-1][0], 3 * static)
    width = (WIDTH - LEFT - 10) / len(bars)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - min(seconds, most) / most * (HEIGHT - BOTTOM - 40)

    parts = []
    for place, (seconds, name) in enumerate(bars):
        x, top = LEFT + place * width, y(seconds)
        colour = "#3a9d5d" if "AUTO" in name else "#4c8bc0"
        parts += [
            f'<rect x="{x + 2:.1f}" y="{top:.1f}" width="{width - 4:.1f}" '
            f'height="{HEIGHT - BOTTOM - top:.1f}" fill="{colour}"/>',
            f'<text x="{x + width / 2:.1f}" y="{top - 4:.1f}" font-size="9" text-anchor="middle">'
            f"{seconds / static - 1:+.0%}</text>",
            f'<text transform="translate({x + width / 2 + 4:.1f},{HEIGHT - BOTTOM + 8}) rotate(60)" '
            f'font-size="11">{name}</text>',
        ]
    line = y(static)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" role="img">',
            "<title>Time of connected components by scheme, beside STATIC</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            *parts,
            f'<line x1="{LEFT}" y1="{line:.1f}" x2="{WIDTH - 10}" y2="{line:.1f}" stroke="#c0392b" '
            'stroke-dasharray="6 4"/>',
            f'<text x="4" y="{line + 4:.1f}" font-size="11">{static * 1e3:.0f} ms</text>',
            f'<text x="4" y="{HEIGHT - BOTTOM}" font-size="11">0</text>',
            "</svg>\n",
        ]
    )


TABLES: list[tuple[str, Callable[[Rows], str]]] = [
    ("_grid", grid_table),
    ("loops_graph", graph_table),
    ("loops_overhead", overhead_table),
    ("loops_scaling", scaling_table),
    ("loops_cells", cells_table),
    ("self_scheduled", self_scheduled.show),
]


def main() -> None:
    """Prints the tables of all files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument(
        "--picture", type=Path, help="where to draw the first file, of loops_graph.py"
    )
    given = parser.parse_args()
    if given.picture:
        given.picture.write_text(picture(read_journal(given.files[0])[1]), encoding="utf-8")
        return
    for path in given.files:
        machine, rows = read_journal(path)
        make = next((make for part, make in TABLES if part in path.stem), None)
        if make is not None and rows:
            print(f"## {path.stem}\n\n{make(rows)}\n\n{machine}\n", flush=True)


if __name__ == "__main__":
    main()
