# SPDX-License-Identifier: Apache-2.0
"""A running job in a terminal: what `gangline top` draws."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gangline.cli.output import printable

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

    from gangline.protocol.live import Snapshot, WorkerNow
    from gangline.spec.event import Decision

BAR_CELLS = 20
NEWS = 8
_TEXTS = ("worker", "host", "state")
_COLUMNS = (*_TEXTS, "share", "samples/s", "alone", "waits", "step", "cores", "memory", "busy")
_DROPPED = ("busy", "memory", "cores", "alone", "host", "step", "waits")
"""Columns that a narrow screen does without, in this order."""
_TEXT_CELLS, _GAP_CELLS = 8, 2
WIDE = 140
"""What is drawn for a screen that nobody has measured."""
BUSY, EXCHANGE, WAIT = "bright_blue", "yellow", "red"
DULL = ("publish_view",)
"""Decisions that follow from others, which are told already."""


class TopScreen:
    """What was told last, as a table or as one line."""

    def __init__(self) -> None:
        self.now: Snapshot | None = None
        self.line = "connecting"
        """How the line to the coordinator is; empty where there is nothing to say."""
        self._news: deque[Decision] = deque(maxlen=NEWS)

    def note(self, decision: Decision) -> bool:
        """Something was decided; whether people should see it."""
        is_shown = decision.what not in DULL
        if is_shown:
            self._news.append(decision)
        return is_shown

    def draw(self, width: int = WIDE) -> RenderableType:
        """Everything; a screen that is not so wide has fewer columns, and no number is cut."""
        parts: list[RenderableType] = []
        if self.now is not None:
            parts += [
                Text(summary(self.now), style="bold"),
                Text(),
                _table(self.now, width),
                Text(),
            ]
        parts += [Text(told(one), style="dim") for one in self._news]
        status = f"{self.line} · " if self.line else ""
        parts.append(Text(f"{status}q: quit", style="dim"))
        return Group(*parts)


def summary(now: Snapshot) -> str:
    """The job in one line."""
    members = sum(one.is_member for one in now.workers)
    parts = [
        printable(now.run),
        "paused" if now.is_paused else f"{_number(now.samples_per_s)} samples/s",
    ]
    if now.samples_per_s and now.parts_per_s:
        parts.append(f"{now.samples_per_s / now.parts_per_s:.0%} of the sum of the parts")
    if now.epoch >= 0:
        of = f"/{now.epochs}" if now.epochs else ""
        parts.append(f"epoch {now.epoch + bool(of)}{of}")
    parts.append(f"step {max(now.step, 0)}")
    if now.loss is not None:
        parts.append(f"loss {now.loss:.4g}")
    parts.append(f"{members} of {len(now.workers) or now.expected_workers} workers")
    if now.sync:
        parts.append(now.sync)
    return "  ".join(parts)


def told(decision: Decision) -> str:
    """A decision, for people."""
    at = time.strftime("%H:%M:%S", time.localtime(decision.t))
    return f"{at}  {printable(decision.reason)}"


def _table(now: Snapshot, width: int) -> Table:
    table = Table(box=None, pad_edge=False)
    rows = [_row(one, is_paused=now.is_paused) for one in now.workers]
    widths = _widths(rows, width)
    for name, cells in widths.items():
        side: JustifyMethod = "left" if name in (*_TEXTS, "busy") else "right"
        title = Text.assemble(("busy ", BUSY), ("exchange ", EXCHANGE), ("wait", WAIT))
        head = title if name == "busy" else name
        table.add_column(head, width=cells, justify=side, overflow="ellipsis", no_wrap=True)
    for one, row in zip(now.workers, rows, strict=True):
        table.add_row(*(row[name] for name in widths), style="" if one.is_member else "dim")
    return table


def _widths(rows: list[dict[str, str | Text]], width: int) -> dict[str, int]:
    """The columns that there is room for: texts may be cut, numbers may not."""
    whole = {
        name: max([len(name), *(cell_len(str(row[name])) for row in rows)]) for name in _COLUMNS
    }
    whole["busy"] = BAR_CELLS
    found = {name: min(n, _TEXT_CELLS) if name in _TEXTS else n for name, n in whole.items()}

    def room() -> int:
        return width - sum(found.values()) - _GAP_CELLS * (len(found) - 1)

    for name in _DROPPED:
        if room() < 0:
            del found[name]
    for name in ("state", "host"):
        if name in found:
            found[name] += max(0, min(room(), whole[name] - found[name]))
    return found


def _row(one: WorkerNow, *, is_paused: bool) -> dict[str, str | Text]:
    state = "paused" if is_paused and one.is_member else one.state
    return {
        "worker": str(one.worker),
        "host": Text(printable(one.node or one.host)),
        "state": Text(state if one.is_connected else f"{state}, not connected"),
        "share": str(one.share) if one.is_member else "-",
        "samples/s": _number(one.samples_per_s),
        "alone": _number(one.alone_per_s),
        "waits": "-" if one.wait is None else f"{one.wait:.0%}",
        "step": str(one.step) if one.step >= 0 else "-",
        "cores": "-" if one.cpu is None else f"{one.cpu:.1f}",
        "memory": "-" if one.memory_bytes is None else f"{one.memory_bytes / 1e6:,.0f} MB",
        "busy": _bar(one),
    }


def _bar(one: WorkerNow) -> Text:
    if one.busy is None or one.wait is None:
        return Text()
    busy = round(one.busy * BAR_CELLS)
    wait = min(round(one.wait * BAR_CELLS), BAR_CELLS - busy)
    # Different letters, too: colours are not for everybody.
    return Text.assemble(
        ("█" * busy, BUSY), ("▒" * (BAR_CELLS - busy - wait), EXCHANGE), ("·" * wait, WAIT)
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
