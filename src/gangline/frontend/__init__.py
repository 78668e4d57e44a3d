# SPDX-License-Identifier: Apache-2.0
"""The scripts and styles of Gangline's pages: the report and the dashboard.

Plain JavaScript, as it is read by the browser. What is not ours lies in `vendor/` and is fetched by
`make frontend`; a wheel has it inside.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from gangline.spec.errors import GanglineError

CHART_SCRIPTS = (
    *("vendor/uPlot.iife.min.js", "charts.js"),
    *("gantt_data.js", "gantt_hands.js", "gantt.js", "structure.js"),
)
"""What draws, in the order in which it is loaded."""
CHART_STYLES = ("vendor/uPlot.min.css", "style.css")

_ESCAPES = {ord(one): f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"}


class FrontendMissingError(GanglineError):
    """A file of the pages is not installed."""


def asset(name: str) -> str:
    """The text of one file, such as `charts.js` or `vendor/uPlot.min.css`."""
    try:
        return files(__name__).joinpath(name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FrontendMissingError(
            f"{name} is not installed, and no page can be drawn without it; run `make frontend` in "
            "the source folder (it needs npm), or install gangline as a wheel"
        ) from error


def script_json(value: Any) -> str:
    """A value as JSON that can stand inside a script element: no text in it can end the element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)
