# SPDX-License-Identifier: Apache-2.0
"""`gangline leave`: takes a worker out of a running job, politely."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gangline.cli.contact import ask
from gangline.cli.output import JsonFlag, print_json, say
from gangline.spec.announcement import read_announcement


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("leave")(leave)


def leave(
    run_dir: Annotated[Path, typer.Argument(help="The run folder.")],
    worker: Annotated[int, typer.Option(help="The number of the worker that shall leave.")],
    token_file: Annotated[
        Path | None, typer.Option(help="The run's token file (default: in the run folder).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Ask a worker to leave: it finishes its step, the others go on without it, and it ends."""
    announcement = read_announcement(run_dir)
    ask(
        announcement.url,
        "/api/leave",
        token_file=token_file or run_dir / "token",
        body=msgspec.json.encode({"worker": worker}),
    )
    if as_json:
        print_json({"run": announcement.run, "leaving": worker})
    else:
        say(f"worker {worker} leaves {announcement.run} after its present step")
