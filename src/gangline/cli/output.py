# SPDX-License-Identifier: Apache-2.0
"""How all verbs speak: text for people, one JSON document for programs, errors in one line.

With `--json`, standard output holds exactly one JSON document, also when the command fails:
`{"error": {"kind": "UsageError", "message": "…"}}`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from gangline.spec.errors import GanglineError, UsageError

EXIT_FAILURE = 1
EXIT_USAGE = 2

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def out() -> Console:
    """Standard output, for people. Made anew each time, as tests replace the stream."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """Standard error, for people."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One line of plain text for people; nothing in it is taken for markup."""
    out().print(Text(text))


def warn(text: str) -> None:
    """One line that people should see, beside what programs read."""
    err().print(Text.assemble(("warning: ", "yellow"), text))


def print_json(value: Any) -> None:
    """One JSON document on standard output; structs, dicts, lists and numbers."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def exit_code_of(error: GanglineError) -> int:
    """2 where the user asked for something that cannot be done, 1 where something failed."""
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE


def print_error(message: str, *, kind: str, as_json: bool) -> None:
    """An error, without a traceback: its message is meant to be enough."""
    if as_json:
        print_json({"error": {"kind": kind, "message": message}})
    else:
        shown = printable(message)
        err().print(Text.assemble(("error: ", "bold red"), (shown, "red")))


def printable(text: str) -> str:
    """Without what a terminal would take for commands: another machine may have written it."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
