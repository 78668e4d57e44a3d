# SPDX-License-Identifier: Apache-2.0
"""The pictures of the report in docs/pictures, out of the two runs of a demo (needs `make browser`).

python tools/pictures.py runs/demo-…-equal runs/demo-…-balanced
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from gangline.observe.page import Price, compare_folders, make_page

CHROMIUM = "/usr/bin/chromium-headless-shell"
FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
GANTT = "What everybody did"
PRICE = Price(per_hour=0.6)


def take(page: Any, name: str, first: str, last: str) -> None:
    """From the heading of one section to the end of another."""
    boxes = page.evaluate(
        "(titles) => titles.map((title) => { const section = "
        "document.querySelector(`[data-section='${title}']`); const heading = "
        "[...document.querySelectorAll('h2')].find((one) => one.textContent === title);"
        "return [heading.getBoundingClientRect().top, section.getBoundingClientRect().bottom]"
        ".map((y) => y + scrollY); })",
        [first, last],
    )
    top, bottom = boxes[0][0] - 12, boxes[1][1] + 12
    size = page.viewport_size["width"]
    path = FOLDER / f"{name}.png"
    clip = {"x": 0, "y": top, "width": size, "height": bottom - top}
    page.screenshot(path=str(path), full_page=True, clip=clip)
    # Charts have few colours: with a palette the file is a third as large.
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def zoom(page: Any, begin: str, end: str) -> None:
    """Shows a part of the run; `t(n)` is when the first worker's step n ended."""
    page.evaluate(
        "([title, begin, end]) => { const chart = "
        "document.querySelector(`[data-section='${title}']`).chart; const detail = "
        "chart.model.detail; const t = (step) => detail.end[detail.step.indexOf(step)];"
        "chart.zoom(Function('t', `return ${begin}`)(t), Function('t', `return ${end}`)(t)); }",
        [GANTT, begin, end],
    )
    page.wait_for_timeout(400)


def main(equal: Path, balanced: Path) -> None:
    """Takes all of them."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def opened(name: str, text: str, width: int, scheme: str = "light") -> Any:
            file = Path(folder) / name
            file.write_text(text, encoding="utf-8")
            size = {"width": width, "height": 900}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto(file.as_uri())
            page.wait_for_selector("html[data-ready]")
            page.wait_for_timeout(300)
            return page

        text = make_page(balanced, price=PRICE)
        page = opened("balanced.html", text, 1000)
        take(page, "demo", "Figures", "Shares")
        take(page, "utilisation", "Utilisation", "Step time, predicted and measured")
        zoom(page, "t(40) - 1", "t(40) + 1")
        take(page, "steps", GANTT, GANTT)
        zoom(page, "t(40)", "t(41) + 0.005")
        take(page, "units", GANTT, GANTT)
        take(opened("equal.html", make_page(equal, price=PRICE), 1000), "bill", "The bill", GANTT)
        take(opened("phone.html", text, 390, "dark"), "phone", GANTT, "Shares")
        _, both = compare_folders([equal, balanced], price=PRICE, with_page=True)
        take(opened("both.html", both, 1200), "compare", "The bill", GANTT)
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
