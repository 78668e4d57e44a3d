# SPDX-License-Identifier: Apache-2.0
"""The flag that says for how long a silent worker is waited for."""

from __future__ import annotations

from typing import Annotated

import typer

from gangline.spec.config import LEAST_PATIENCE_S, MOST_PATIENCE_S

DEFAULT_PATIENCE_S = LEAST_PATIENCE_S
PatienceFlag = Annotated[
    float,
    typer.Option(
        min=DEFAULT_PATIENCE_S,
        max=MOST_PATIENCE_S,
        metavar="SECONDS",
        help="How long others wait for a worker that is silent; 30 times that if it computes.",
    ),
]
