# SPDX-License-Identifier: Apache-2.0
"""Where the secret of an invitation comes from, and how it is kept out of the process list."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from gangline.spec.machines.link import JoinLink

SECRET_VARIABLE = "GANGLINE_SECRET"
_MAX_CHARS = 256
_ARGUMENTS_START, _ARGUMENTS_END = 47, 48
"""Which fields of /proc/PID/stat say where the kernel reads a process's command line."""


def find_secret(link: JoinLink, secret_file: Path | None) -> str:
    """From the link, a file, the environment, a pipe or a prompt: the first that has it."""
    given = os.environ.pop(SECRET_VARIABLE, "")  # workers do not inherit it
    if link.secret and secret_file is not None:
        raise UsageError(
            "the link has a secret already: leave out --secret-file, or what follows the last dot "
            "of the link"
        )
    if link.secret:
        return link.secret
    if secret_file is not None:
        return _checked(_read(secret_file), f"in {secret_file}")
    if given:
        return _checked(given, f"in {SECRET_VARIABLE}")
    if sys.stdin.isatty():
        return _checked(typer.prompt("secret of the invitation", hide_input=True), "you typed")
    return _checked(sys.stdin.readline(_MAX_CHARS), "on standard input")


def _read(path: Path) -> str:
    if str(path) == "-":
        return sys.stdin.readline(_MAX_CHARS)
    try:
        with path.open(encoding="ascii") as file:
            return file.read(_MAX_CHARS)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the secret in {path}: {error}") from error


def _checked(text: str, where: str) -> str:
    secret = text.strip()
    if not secret:
        raise UsageError(
            f"there is no secret {where}: `gangline token make RUN_DIR` prints a link with one; "
            f"it is what follows the last dot. Give it in the link, with --secret-file FILE, in "
            f"{SECRET_VARIABLE}, or on standard input"
        )
    if not secret.replace("-", "").replace("_", "").isalnum() or not secret.isascii():
        raise UsageError(f"the secret {where} is none: it is letters, digits, - and _")
    return secret


def hide_argument(secret: str) -> bool:
    """Overwrites a secret in this process's command line, as `ps` shows it; whether it is gone."""
    if not secret or secret.encode() not in _command_line():
        return True
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        # What follows the name in brackets begins with the third field.
        start, end = int(fields[_ARGUMENTS_START - 2]), int(fields[_ARGUMENTS_END - 2])
        memory = ctypes.string_at(start, end - start)
        at = memory.find(secret.encode())
        while at >= 0:
            ctypes.memset(start + at, ord("*"), len(secret))
            at = memory.find(secret.encode(), at + len(secret))
    except (OSError, ValueError, IndexError):
        return False
    return secret.encode() not in _command_line()


def _command_line() -> bytes:
    try:
        return Path("/proc/self/cmdline").read_bytes()
    except OSError:  # no Linux: what is shown there cannot be known
        return b" ".join(os.fsencode(one) for one in sys.argv)
