# SPDX-License-Identifier: Apache-2.0
"""One file that shows a run, or several beside each other: opens from disk, and loads nothing."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from gangline.frontend import CHART_SCRIPTS, CHART_STYLES, asset, script_json

if TYPE_CHECKING:
    from gangline.observe.page.columns import Columns

# Scripts and styles of the file itself only: whatever gets into the page, nothing is loaded or sent.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{styles}</style>
</head>
<body>
<main id="report"><p>This page draws a run by its own scripts, which are switched off.</p></main>
<script type="application/json" id="document">{document}</script>
<script type="text/plain" id="columns">{columns}</script>
{scripts}
<!-- uPlot, which is part of this file:
{licence}-->
</body>
</html>
"""


def write_page(title: str, document: dict[str, Any], columns: Columns) -> str:
    """The page as one text; `document` refers to the columns."""
    scripts = [asset(name) for name in (*CHART_SCRIPTS, "sections.js", "report.js")]
    return _PAGE.format(
        policy=_POLICY,
        title=html.escape(title),
        styles="\n".join(asset(name) for name in CHART_STYLES),
        document=script_json(document),
        columns=columns.packed(),
        licence=asset("vendor/uPlot.LICENSE"),
        scripts="\n".join(f"<script>\n{text}\n</script>" for text in scripts),
    )
