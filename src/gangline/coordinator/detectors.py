# SPDX-License-Identifier: Apache-2.0
"""Detectors of slow workers: one of ours by its name, or a user's class, which is imported here."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.control.detection import check_detector, detector_named
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from gangline.control.detection import Detector


def load_detector(text: str) -> Detector:
    """The detector that is named; what is wrong with it is said before anything is started."""
    module_name, colon, name = text.partition(":")
    if not colon:
        return detector_named(text)
    if not module_name or not name:
        raise UsageError(f"detector {text!r}: write package.module:Name, such as my_rules:Strict")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"detector {text}: cannot import {module_name} ({error}); it must be installed, or lie "
            f"in {here}"
        ) from error
    kind = getattr(module, name, None)
    if kind is None:
        raise UsageError(f"detector {text}: {module_name} has no {name}")
    return check_detector(kind, name=text)
