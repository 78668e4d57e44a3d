# SPDX-License-Identifier: Apache-2.0
"""Draws docs/sync.svg: the time lines of a fast and a slow team in four modes.

python benchmarks/sync_picture.py > docs/sync.svg
"""

from __future__ import annotations

import sys

WIDTH, LEFT, RIGHT = 790, 190, 750
LANE, GAP = 18, 6
FAST, SLOW, EXCHANGE = 20, 50, 10
COLOURS = {"step": "#4c8bc0", "wait": "#e3e3e3", "exchange": "#d9822b"}


class Panel:
    """One mode: two lanes of boxes, and what is exchanged between them."""

    def __init__(self, top: int, title: str, note: str) -> None:
        self.top = top
        self.parts = [
            _text(10, top + 12, title, weight="bold"),
            _text(10, top + 30, note, size=10),
            _text(LEFT - 8, top + 13, "fast", size=10, anchor="end"),
            _text(LEFT - 8, top + LANE + GAP + 13, "slow", size=10, anchor="end"),
        ]

    def box(self, lane: int, start: float, stop: float, kind: str) -> None:
        if stop <= start:
            return
        y = self.top + lane * (LANE + GAP)
        self.parts.append(
            f'<rect x="{LEFT + start:g}" y="{y}" width="{stop - start:g}" height="{LANE}" '
            f'fill="{COLOURS[kind]}" stroke="#ffffff"/>'
        )

    def steps(self, lane: int, start: float, *, count: int) -> float:
        size = (FAST, SLOW)[lane]
        for number in range(count):
            self.box(lane, start + number * size, start + (number + 1) * size, "step")
        return start + count * size

    def merge(self, at: float) -> float:
        """Both stop and exchange."""
        for lane in (0, 1):
            self.box(lane, at, at + EXCHANGE, "exchange")
        return at + EXCHANGE

    def merge_beside(self, start: float, stop: float) -> None:
        """An exchange in the background, from the copies to where the mean is taken."""
        y = self.top + LANE + GAP / 2
        self.parts.append(
            f'<line x1="{LEFT + start:g}" y1="{y}" x2="{LEFT + stop:g}" y2="{y}" '
            f'stroke="{COLOURS["exchange"]}" stroke-width="4"/>'
        )


def full(top: int) -> Panel:
    panel = Panel(top, "full", "every step together")
    at = 0.0
    while at + SLOW + EXCHANGE <= RIGHT - LEFT:
        fast, slow = (panel.steps(lane, at, count=1) for lane in (0, 1))
        panel.box(0, fast, slow, "wait")
        at = panel.merge(slow)
    return panel


def percentage(top: int) -> Panel:
    panel = Panel(top, "percentage, flexible", "merged beside")
    panel.steps(0, 0, count=27)
    panel.steps(1, 0, count=11)
    for start in (100, 240, 380):
        panel.merge_beside(start, start + 80)
    panel.box(0, 540, 550, "wait")
    return _ended(panel, 550)


def local(top: int) -> Panel:
    panel = Panel(top, "local(3, strict)", "stop after 3 steps")
    at = 0.0
    while at + 3 * SLOW + EXCHANGE <= RIGHT - LEFT:
        fast, slow = (panel.steps(lane, at, count=3) for lane in (0, 1))
        panel.box(0, fast, slow, "wait")
        at = panel.merge(slow)
    return panel


def none(top: int) -> Panel:
    panel = Panel(top, "none", "merged at epoch ends")
    panel.steps(0, 0, count=27)
    panel.steps(1, 0, count=11)
    panel.box(0, 540, 550, "wait")
    return _ended(panel, 550)


def _ended(panel: Panel, at: float) -> Panel:
    panel.merge(at)
    return panel


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{text}</text>'
    )


def _legend(top: int) -> list[str]:
    names = {"step": "a step", "wait": "waiting", "exchange": "exchanging"}
    parts = []
    for number, (kind, name) in enumerate(names.items()):
        x = LEFT + 120 * number
        parts.append(f'<rect x="{x}" y="{top}" width="14" height="12" fill="{COLOURS[kind]}"/>')
        parts.append(_text(x + 20, top + 11, name, size=11))
    return [*parts, _text(RIGHT, top + 11, "time →", size=11, anchor="end")]


def draw() -> str:
    """The whole picture."""
    panels = [make(12 + 66 * number) for number, make in enumerate((full, percentage, local, none))]
    parts = [part for panel in panels for part in panel.parts]
    height = 12 + 66 * len(panels) + 24
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" role="img">',
            "<title>Time lines of a fast and a slow team in four modes</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *parts,
            *_legend(height - 22),
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(draw())
