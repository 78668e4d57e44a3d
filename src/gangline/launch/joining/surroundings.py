# SPDX-License-Identifier: Apache-2.0
"""Finds out what a job's code runs in: which packages it imports, and their versions here."""

from __future__ import annotations

import ast
import platform
import sys
import warnings
from importlib import metadata
from typing import TYPE_CHECKING

from gangline.spec.machines.surroundings import MISSING, Surroundings
from gangline.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ALWAYS = ("torch",)
_OURS = "gangline"


def surroundings_of(sources: Mapping[str, bytes]) -> Surroundings:
    """Python, torch, and the packages that these files import, as they are installed here."""
    local = {name.partition("/")[0].removesuffix(".py") for name in sources}
    imported = {module for source in sources.values() for module in imports_of(source)}
    modules = imported - local - sys.stdlib_module_names - {_OURS}
    known = metadata.packages_distributions()
    packages = {name for module in modules for name in known.get(module, ())}
    return surroundings_here(sorted({*packages, *_ALWAYS}))


def surroundings_here(packages: Iterable[str]) -> Surroundings:
    """The versions of these packages on this machine, and of ours."""
    found = {name: _version(name) for name in packages}
    return Surroundings(python=platform.python_version(), packages={**found, _OURS: VERSION})


def imports_of(source: bytes) -> set[str]:
    """The modules that a file imports, wherever in it; nothing is run. None where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return MISSING
