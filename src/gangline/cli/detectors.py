# SPDX-License-Identifier: Apache-2.0
"""The flag that says who counts as slow."""

from __future__ import annotations

from typing import Annotated

import typer

from gangline.spec.config import ManagerConfig

DEFAULT_DETECTOR = ManagerConfig().detector
DetectorFlag = Annotated[
    str,
    typer.Option(
        metavar="NAME|MODULE:CLASS",
        help="Who counts as slow: robust, paper-average, paper-window, or a class of your own.",
    ),
]
