# SPDX-License-Identifier: Apache-2.0
"""The detectors that have a name."""

from __future__ import annotations

import difflib
from types import MappingProxyType
from typing import TYPE_CHECKING

from gangline.control.detection.paper import AverageDetector, WindowDetector
from gangline.control.detection.robust import RobustDetector
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gangline.control.detection.protocol import Detector

DETECTORS: Mapping[str, Callable[[], Detector]] = MappingProxyType(
    {
        "robust": RobustDetector,
        "paper-average": AverageDetector,
        "paper-window": WindowDetector,
    }
)
"""What `--detector` accepts, beside a class of the user's own."""


def detector_named(name: str) -> Detector:
    """The detector of that name, which knows nobody yet."""
    if name not in DETECTORS:
        near = difflib.get_close_matches(name, DETECTORS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"no detector {name!r}; there are {', '.join(DETECTORS)}, and any class of your own as "
            f"package.module:Name{hint}"
        )
    return DETECTORS[name]()
