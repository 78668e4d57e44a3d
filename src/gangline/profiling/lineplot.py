# SPDX-License-Identifier: Apache-2.0
"""A small plot as SVG: lines over two logarithmic axes, with nothing to install."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, MARGIN = 720, 420, 60
COLOURS = ("#1b6ca8", "#e07a1f", "#a83232", "#4b8b3b")
Point = tuple[float, float]


def draw_lines(series: Mapping[str, Sequence[Point]], *, title: str, x: str, y: str) -> str:
    """The plot; every coordinate must be above 0."""
    points = [point for line in series.values() for point in line]
    frame = [_bounds([point[axis] for point in points]) for axis in (0, 1)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 22, title, anchor="middle"),
        _text(WIDTH / 2, HEIGHT - 12, x, anchor="middle"),
        _text(12, 40, y),
        *_ticks(frame),
    ]
    for place, (name, line) in enumerate(series.items()):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (_place(p, frame) for p in line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(MARGIN + 12, 60 + 18 * place, name, colour=colour))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = math.log10(min(values)), math.log10(max(values))
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _place(point: Point, frame: Sequence[tuple[float, float]]) -> Point:
    fractions = [
        (math.log10(value) - low) / (high - low)
        for value, (low, high) in zip(point, frame, strict=True)
    ]
    return (
        MARGIN + fractions[0] * (WIDTH - 2 * MARGIN),
        HEIGHT - MARGIN - fractions[1] * (HEIGHT - 2 * MARGIN),
    )


def _ticks(frame: Sequence[tuple[float, float]]) -> list[str]:
    parts = []
    for axis, (low, high) in enumerate(frame):
        for exponent in range(math.ceil(low), math.floor(high) + 1):
            origin = [10 ** frame[0][0], 10 ** frame[1][0]]
            origin[axis] = 10.0**exponent
            px, py = _place((origin[0], origin[1]), frame)
            label = f"1e{exponent}"
            parts.append(
                _text(px, HEIGHT - MARGIN + 18, label, anchor="middle")
                if axis == 0
                else _text(MARGIN - 8, py + 4, label, anchor="end")
            )
    return parts


def _text(
    px: float, py: float, text: str, *, anchor: str = "start", colour: str = "#333333"
) -> str:
    return (
        f'<text x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(text)}</text>"
    )
