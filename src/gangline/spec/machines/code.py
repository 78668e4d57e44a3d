# SPDX-License-Identifier: Apache-2.0
"""The code of a job, as its first machine offers it to those that join: a list of files, and a command.

Whoever reads such a list does not trust it: names that lead out of a folder, twice the same name, and
more than was agreed on are refused, by name.
"""

from __future__ import annotations

import hashlib
import unicodedata
from typing import TYPE_CHECKING

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.machines.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_MAX_BYTES = 64 << 20
MAX_FILES = 10_000
MAX_SAMPLES = 64
_MAX_PARTS = 32
_MAX_NAME_BYTES, _MAX_PART_BYTES = 1024, 255
_DIGEST_CHARS = 64


class CodeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of it."""

    name: str
    """Its path below the code's folder, with slashes."""
    size: int
    digest: str
    """The SHA-256 of what is in it."""
    is_executable: bool = False


class CodeManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the job's workers run."""

    files: tuple[CodeFile, ...]
    script: str | None = None
    """One of the files; None where a module is run."""
    module: str | None = None
    arguments: tuple[str, ...] = ()
    folder: str = ""
    """Where it is run, below the code's folder; empty: there."""
    surroundings: Surroundings | None = None
    """What it runs in on the first machine."""
    compare_samples: int = 0
    """How many samples of the data set workers compare before they train together."""

    @property
    def is_offered(self) -> bool:
        """Whether there is code to be had, or only to be compared with."""
        return self.script is not None or self.module is not None

    @property
    def num_bytes(self) -> int:
        """How much there is to bring."""
        return sum(one.size for one in self.files)

    @property
    def fingerprint(self) -> str:
        """The same for the same files and the same command, whatever their order."""
        files = sorted((one.name, one.digest, one.is_executable) for one in self.files)
        told = (files, self.script, self.module, self.arguments, self.folder)
        return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:32]

    @property
    def command(self) -> tuple[str, ...]:
        """What python is given."""
        what = ("-m", self.module) if self.module is not None else (str(self.script),)
        return (*what, *self.arguments)

    def check(self, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Raises UsageError, which names the file, where this is no code that can be brought."""
        if self.surroundings is not None:
            self.surroundings.check()
        if not 0 <= self.compare_samples <= MAX_SAMPLES:
            raise UsageError(
                f"{self.compare_samples} samples are to be compared: 0 to {MAX_SAMPLES} can be"
            )
        if not self.files and not self.is_offered:
            return  # there is only something to compare with
        if len(self.files) > MAX_FILES:
            raise UsageError(f"the code has {len(self.files)} files, more than {MAX_FILES}")
        for one in self.files:
            check_name(one.name)
            if one.size < 0:
                raise UsageError(f"the code's file {one.name!r} is said to have {one.size} bytes")
            if len(one.digest) != _DIGEST_CHARS or not set(one.digest) <= set("0123456789abcdef"):
                raise UsageError(f"the code's file {one.name!r} comes with no SHA-256")
        _check_distinct(one.name for one in self.files)
        if self.num_bytes > max_bytes:
            raise UsageError(
                f"the code has {in_mib(self.num_bytes)}, more than {in_mib(max_bytes)} (its "
                f"largest file is {self._largest()}): raise the limit with --max-code MIB, or "
                "bring less"
            )
        self._check_command()

    def _check_command(self) -> None:
        if (self.script is None) == (self.module is None):
            raise UsageError("the code comes with no command: a script, or else a module")
        if self.script is not None and self.script not in {one.name for one in self.files}:
            raise UsageError(f"the code's script {self.script!r} is none of its files")
        if self.module is not None and not all(
            one.isidentifier() for one in self.module.split(".")
        ):
            raise UsageError(f"the code's module {self.module!r} is not the name of a module")
        if self.folder:
            check_name(self.folder)
            if any(f"{self.folder}/".startswith(f"{one.name}/") for one in self.files):
                raise UsageError(f"the code's folder {self.folder!r} is a file, too")
        if any("\0" in one for one in self.arguments):
            raise UsageError("the code's command has an argument with a null byte")

    def _largest(self) -> str:
        largest = max(self.files, key=lambda one: one.size)
        return f"{largest.name}, {in_mib(largest.size)}"


def check_name(name: str) -> None:
    """Refuses a path that leads elsewhere, or that people could not read."""
    parts = name.split("/")
    if name.startswith("/") or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"the code's file {name!r} would lie outside of the code's folder")
    if not name.isprintable() or any(unicodedata.category(one)[0] == "C" for one in name):
        raise UsageError(f"the code's file {name!r} has a name that cannot be shown")
    longest = max(len(part.encode()) for part in parts)
    is_long = len(name.encode()) > _MAX_NAME_BYTES or longest > _MAX_PART_BYTES
    if is_long or len(parts) > _MAX_PARTS:
        raise UsageError(f"the code's file {name[:80]!r}… has a name that is too long")


def _check_distinct(names: Iterable[str]) -> None:
    known: set[str] = set()
    folders: set[str] = set()
    for name in names:
        parts = name.split("/")
        above = {"/".join(parts[:end]) for end in range(1, len(parts))}
        if name in known:
            raise UsageError(f"the code's file {name!r} is there twice")
        if name in folders or above & known:
            raise UsageError(f"the code's file {name!r} is a folder, too")
        known.add(name)
        folders |= above


def in_mib(num_bytes: int) -> str:
    """A number of bytes for people."""
    if num_bytes < 1 << 20:
        return f"{num_bytes / 1024:.1f} KiB"
    return f"{num_bytes / (1 << 20):.1f} MiB"
