# SPDX-License-Identifier: Apache-2.0
"""The flag that says what the workers of a machine compute on; several verbs have it."""

from __future__ import annotations

from typing import Annotated

import typer

DevicesFlag = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|0,1,…",
        help="What workers compute on: one GPU each (auto, if there are any), none, or these.",
    ),
]
