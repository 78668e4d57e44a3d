# SPDX-License-Identifier: Apache-2.0
"""The flags that say who counts as slow, and whether slow workers are left out."""

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
EverybodyFlag = Annotated[
    bool,
    typer.Option(
        "--everybody", help="Train with all workers, also where fewer of them would be faster."
    ),
]
