# SPDX-License-Identifier: Apache-2.0
"""`gangline leave`: takes a worker out of a running job, politely."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gangline.cli.output import JsonFlag, print_json, say
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("leave")(leave)


def leave(
    run_dir: Annotated[Path, typer.Argument(help="The run folder.")],
    worker: Annotated[int, typer.Option(help="The number of the worker that shall leave.")],
    token_file: Annotated[
        Path | None, typer.Option(help="The operator's token file (default: in the run folder).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Ask a worker to leave: it finishes its step, the others go on without it, and it ends."""
    contact = RunContact(run_dir, token_file=token_file or run_dir / OPERATOR_TOKEN)
    contact.ask("/api/leave", body=msgspec.json.encode({"worker": worker}))
    run = contact.announcement.run
    if as_json:
        print_json({"run": run, "leaving": worker})
    else:
        say(f"worker {worker} leaves {run} after its present step")
