# SPDX-License-Identifier: Apache-2.0
"""The flag that says for how long a silent worker is waited for."""

from __future__ import annotations

from typing import Annotated

import typer

from gangline.control.members.watch import MIN_PATIENCE_S

DEFAULT_PATIENCE_S = MIN_PATIENCE_S
PatienceFlag = Annotated[
    float,
    typer.Option(
        min=DEFAULT_PATIENCE_S,
        max=3600.0,
        metavar="SECONDS",
        help="How long others wait for a worker that is silent; 30 times that if it computes.",
    ),
]
