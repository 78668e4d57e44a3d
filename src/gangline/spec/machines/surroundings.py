# SPDX-License-Identifier: Apache-2.0
"""What a job's code runs in: Python, and the packages that it imports; and how two machines differ.

Versions come from another machine, and are shown in commands that people may paste: what is no version
is refused.
"""

from __future__ import annotations

import re

import msgspec

from gangline.spec.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,99}")
_MAX_PACKAGES = 1000
MISSING = ""
"""The version of a package that is not installed."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """One machine's."""

    python: str
    packages: dict[str, str]
    """The version of each package; `MISSING` where it is not there."""

    def check(self) -> None:
        """Refuses what no machine can mean."""
        if len(self.packages) > _MAX_PACKAGES or not _VERSION.fullmatch(self.python):
            raise UsageError("what the first machine says of its Python makes no sense: refused")
        for name, version in self.packages.items():
            if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version or "0"):
                raise UsageError(f"the first machine names a package {name[:40]!r}: refused")


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not alike."""

    text: str
    mend: str
    """What to do about it."""
    is_grave: bool = False
    """Whether workers that differ in it should not train together."""

    def __str__(self) -> str:
        return f"{self.text}; to mend it: {self.mend}"


def differences(theirs: Surroundings, mine: Surroundings) -> list[Difference]:
    """What is not here as it is there, the grave ones first."""
    found = []
    if _minor(theirs.python) != _minor(mine.python):
        wanted = _minor(theirs.python)
        found.append(
            Difference(
                text=f"Python {mine.python} here, {theirs.python} there",
                mend=f"python{wanted} -m venv .venv, and install gangline there",
                is_grave=True,
            )
        )
    elif theirs.python != mine.python:
        text = f"Python {mine.python} here, {theirs.python} there"
        found.append(Difference(text=text, mend=f"install Python {theirs.python}"))
    for name, version in theirs.packages.items():
        here = mine.packages.get(name, MISSING)
        if version != MISSING and here != version:
            found.append(_package(name, version, here))
    return sorted(found, key=lambda one: not one.is_grave)


def _package(name: str, version: str, here: str) -> Difference:
    text = f"{name} {here or 'is missing'} here, {version} there"
    return Difference(
        text=text,
        # Which build of it (for CPUs, for CUDA) is this machine's own matter.
        mend=f"pip install '{name}=={version.partition('+')[0]}'",
        is_grave=name == "torch" and _minor(version) != _minor(here),
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
