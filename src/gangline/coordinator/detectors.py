# SPDX-License-Identifier: Apache-2.0
"""Detectors of slow workers: one of ours by its name, or a user's class, which is imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control.detection import check_detector, detector_named
from gangline.spec.usercode import load_named

if TYPE_CHECKING:
    from gangline.control.detection import Detector


def load_detector(text: str) -> Detector:
    """The detector that is named; what is wrong with it is said before anything is started."""
    if ":" not in text:
        return detector_named(text)
    return check_detector(load_named(text, what="detector"), name=text)
