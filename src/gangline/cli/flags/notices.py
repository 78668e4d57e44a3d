# SPDX-License-Identifier: Apache-2.0
"""The flags that say how a machine learns that it is about to end; several verbs have them."""

from __future__ import annotations

from typing import Annotated

import typer

NoticeFlag = Annotated[
    list[str] | None,
    typer.Option(
        metavar="sigterm|file:PATH|command:COMMAND",
        help="What says that this machine is about to end: its workers leave politely.",
    ),
]
NoticeDeadlineFlag = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="How long after a notice the machine ends."),
]
