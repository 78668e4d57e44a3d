# SPDX-License-Identifier: Apache-2.0
"""Imports what a user names as `package.module:Name`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from gangline.spec.errors import UsageError


def load_named(text: str, *, what: str = "class") -> Any:
    """The object of that name; modules in the present folder are found, too. Raises UsageError."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise UsageError(f"{what} {text!r}: write package.module:Name, such as my_rules:Strict")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"{what} {text}: cannot import {module_name} ({error}); it must be installed, or lie "
            f"in {here}"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        raise UsageError(f"{what} {text}: {module_name} has no {name}")
    return found
